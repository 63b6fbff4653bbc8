"""Names that have a better one now: they work for one more release, and say so."""

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import deprecated as deprecated
else:

    def deprecated(message):
        """For editors and type checkers, which strike the name out; `warn` is for who calls it."""
        return lambda function: function


class EverstreamDeprecationWarning(DeprecationWarning):
    """Something in your program has a new name in Everstream; the message says which."""


def warn(message: str) -> None:
    """Tell whoever called the method that calls this."""
    warnings.warn(message, EverstreamDeprecationWarning, stacklevel=3)
