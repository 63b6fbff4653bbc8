"""Whether runs measure themselves: they do, unless somebody wants to know what that costs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_measures: ContextVar[bool] = ContextVar("measures", default=True)


def measures() -> bool:
    """Whether a run that begins now measures itself."""
    return _measures.get()


@contextmanager
def unmeasured() -> Iterator[None]:
    """Runs that begin in here measure nothing of their shards and workers."""
    token = _measures.set(False)
    try:
        yield
    finally:
        _measures.reset(token)
