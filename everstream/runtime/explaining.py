"""Turns an error of an operator into one that names the operator and the record, and may recur.

User classes take part in this, as records and as errors, and may fail when they are printed or
pickled. An explanation is made all the same, and always reaches the driver.
"""

import errno
import pickle
import traceback
from typing import Any

import polars as pl

from everstream.errors import EverstreamError, OperatorError, ShareRefused, StoreError, UserError
from everstream.pipeline.exact import shown

# A database that is down may be back after a pause; a column that does not exist will not. These
# are only kinds of errors that concern the program, its records or a folder, and never the state of
# another system: in doubt the work is retried.
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
    """Whether the same work would fail with the same error again."""
    if isinstance(error, OSError):
        return error.errno in OF_A_FOLDER
    if isinstance(error, StoreError):
        # Libraries of object stores raise all kinds of errors when a network fails.
        return isinstance(error.__cause__, OSError) and will_recur(error.__cause__)
    if error.__cause__ is not None and will_recur(error.__cause__):
        return True
    return isinstance(error, OF_THE_PROGRAM)


_SHOWN = 303
_PACKAGE = __file__.rsplit("/", 2)[0]
_OURS = (f"{_PACKAGE}/core/", f"{_PACKAGE}/runtime/")
"""Files whose traceback lines tell a user nothing, whatever the user's folders are called."""


def explained(
    error: BaseException, operator: str, shard_number: int, record: Any
) -> EverstreamError:
    """The error as one that names the operator, the record and the traceback."""
    known = isinstance(error, EverstreamError) and not isinstance(error, UserError)
    if (known or isinstance(error, ShareRefused)) and _travels(error):
        error.will_recur = will_recur(error)  # type: ignore[attr-defined]
        return error  # type: ignore[return-value]
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    user_lines = [line for line in lines if not any(own in line.split("\n")[0] for own in _OURS)]
    text = "".join(user_lines).encode(errors="backslashreplace").decode()
    failure = OperatorError(
        operator, shard_number, shown(record, _SHOWN) if record is not None else "", text
    )
    failure.will_recur = will_recur(error)
    return failure


def _travels(error: BaseException) -> bool:
    """Whether it can be sent to the driver; a user's class may hold something that cannot."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # it may do anything when it is pickled
        return False
    return True
