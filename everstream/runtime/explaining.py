"""Makes an error of an operator one that tells a user whose it is and what it was at.

Classes of users take part in this, as records and as errors, and may fail at being shown or
pickled: an explanation always comes of it all the same, and always reaches the driver.
"""

import pickle
import traceback
from typing import Any

from everstream.errors import EverstreamError, OperatorError, UserError
from everstream.runtime.recurring import will_recur

_SHOWN = 300
_OURS = ("everstream/core/", "everstream/runtime/")
"""Lines of a traceback that tell a user nothing."""


def explained(
    error: BaseException, operator: str, shard_number: int, record: Any
) -> EverstreamError:
    """The error as one that names the operator, the record and the traceback."""
    known = isinstance(error, EverstreamError) and not isinstance(error, UserError)
    if known and _travels(error):
        error.will_recur = will_recur(error)  # type: ignore[attr-defined]
        return error  # type: ignore[return-value]
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    theirs = [line for line in lines if not any(own in line.split("\n")[0] for own in _OURS)]
    text = "".join(theirs).encode(errors="backslashreplace").decode()
    told = OperatorError(operator, shard_number, _shown(record), text)
    told.will_recur = will_recur(error)
    return told


def _travels(error: BaseException) -> bool:
    """Whether it can be sent to the driver; a class of a user's may add what cannot."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # see `_shown`
        return False
    return True


def _shown(record: Any) -> str:
    """A record as text, and not too long; classes of users may fail at that, too."""
    try:
        text = repr(record).encode(errors="backslashreplace").decode()
    except Exception as error:
        return (
            f"a {type(record).__name__}, which cannot be shown: {type(error).__name__} in its repr"
        )
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
