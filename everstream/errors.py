"""The errors Everstream raises, in three families that tell you where to look.

`UserError`: the pipeline or its functions are wrong. `EnvironmentFault`: a disk, a peer or a
database failed. `InternalError`: Everstream broke its own rules. All survive pickling, because
Spark moves them between processes, and each may carry a story: the last things the shard did before
the error.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class EverstreamError(Exception):
    """The base class of all errors that Everstream raises on purpose."""

    will_recur = False
    """The same work would fail with the same error again: one retry is enough to know."""

    def __init__(self, message: str, *, story: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.story = tuple(story)

    def __str__(self) -> str:
        if not self.story:
            return self.message
        return self.message + "\n  what the shard did last:\n    " + "\n    ".join(self.story)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[EverstreamError], args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


def said(error: BaseException) -> str:
    """The message of a foreign error, as text that can be shown and stored anywhere."""
    try:
        text = str(error)
    except Exception:  # its class may come from anywhere and do anything
        text = f"{type(error).__name__}, which cannot be shown"
    return text.encode(errors="backslashreplace").decode()


class UserError(EverstreamError):
    """Something in the user's program or options is wrong; the message has the fix."""


class MissingExtra(UserError, ImportError):
    """A package of an extra is not installed; the message has the command to install it."""


class GraphError(UserError):
    """The pipeline's graph is wrong. Raised before Spark starts."""

    def __init__(self, operator: str, problem: str, fix: str) -> None:
        super().__init__(f"operator '{operator}': {problem}. {fix}")
        self.operator = operator
        self.problem = problem
        self.fix = fix


class OperatorError(UserError):
    """A user's function raised. Names the operator and shows the record and the traceback.

    `record` is empty if it was raised for no single record.
    """

    def __init__(
        self,
        operator: str,
        shard: int,
        record: str,
        traceback: str,
        *,
        story: Sequence[str] = (),
    ) -> None:
        super().__init__(
            f"operator '{operator}' (shard {shard}) failed: {_raised(traceback)}\n"
            + (f"  record: {record}\n" if record else "")
            + traceback.rstrip(),
            story=story,
        )
        self.operator = operator
        self.shard = shard
        self.record = record
        self.traceback = traceback


def _raised(traceback: str) -> str:
    """The line with the exception: the first after the frames. Messages can have more lines."""
    lines = traceback.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    for number, line in enumerate(lines):
        begins = number - 1 in frames and not line.startswith(" ")
        if begins and not any(later.startswith('  File "') for later in lines[number:]):
            return line
    return lines[-1] if lines else "unknown error"


class ShareRefused(UserError):
    """A shard cannot take its share of the state of earlier shards. The store is unchanged."""

    will_recur = True

    def __init__(self, operator: str, before: int, shards: int, why: str) -> None:
        super().__init__(
            f"'{operator}' cannot go from {before} shard(s) to {shards}: {why.rstrip().rstrip('.')}. "
            f"The store is unchanged: set shards={before} to resume from its checkpoint (if "
            f"`everstream scale` requested the change: everstream scale {operator}={before})."
        )
        self.operator = operator


class RefusedRecords(UserError):
    """Records that a sink cannot store exactly. It has stored no record of their batch.

    A writer raises it from `write`. The engine then treats these records as `on_error` of the
    sink demands, and writes the others.
    """

    def __init__(self, rows: Mapping[int, str]) -> None:
        """rows: position of each refused record in the batch -> the reason."""
        first = rows[min(rows)]
        more = f" ({len(rows) - 1} more of its batch were refused.)" if len(rows) > 1 else ""
        super().__init__(first + more)
        self.rows = dict(rows)


class EnvironmentFault(EverstreamError):
    """Something in the environment failed: a disk, a network peer, a database, Spark itself."""


class SparkGone(EnvironmentFault):
    """Spark's process has ended during the run: a retry with a new Spark may succeed."""


class StoreError(EnvironmentFault):
    """The store could not be read or written."""


class NotStored(StoreError):
    """The store refused before it started: nothing was written, and nothing will be later."""


class CorruptObject(StoreError):
    """An object in the store is missing, torn or does not match its checksum."""


class LeaseLost(StoreError):
    """Another driver has taken over this store; this one must not write any more."""


class StoreGone(StoreError):
    """The store was deleted while a run was using it."""


class ConnectorError(EnvironmentFault):
    """A source or sink could not read or write; names the file and line, or the table."""


class ConnectionLost(ConnectorError):
    """A database, a broker or a server cannot be reached at the moment: a retry may help."""


class RunFailed(EverstreamError):
    """A run ended without finishing; `cause` is the error that ended it."""

    def __init__(self, message: str, cause: EverstreamError | None = None) -> None:
        super().__init__(message)
        self.cause = cause

    def __str__(self) -> str:
        return self.message if self.cause is None else f"{self.message}\n{self.cause}"


class InternalError(EverstreamError):
    """Everstream broke one of its own rules. Please report it, with the story."""


class FramesLost(InternalError):
    """A frame arrived without those before it: an Everstream bug, unless a network lost them."""
