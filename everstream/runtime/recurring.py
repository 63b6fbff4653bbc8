"""Which errors come again when the same work is done again.

A database that is away may be back after a pause; a column that does not exist will not. Only kinds
of errors are listed here that speak of the program, its records or a folder, and never of the state
of something else: who cannot tell tries again.
"""

import errno

import polars as pl

from everstream.errors import StoreError, UserError

OF_THE_PROGRAM = (
    UserError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    pl.exceptions.PolarsError,
)
OF_A_FOLDER = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.EXDEV),
}


def will_recur(error: BaseException) -> bool:
    """Whether the same work would end in the same error once more."""
    if isinstance(error, OSError):
        return error.errno in OF_A_FOLDER
    if isinstance(error, StoreError):
        # Libraries of object stores raise what they like when a network fails.
        return isinstance(error.__cause__, OSError) and will_recur(error.__cause__)
    if error.__cause__ is not None and will_recur(error.__cause__):
        return True
    return isinstance(error, OF_THE_PROGRAM)
