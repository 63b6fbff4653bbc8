"""Whether runs measure themselves. They do, except in benchmarks of what measuring costs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_measures: ContextVar[bool] = ContextVar("measures", default=True)


def measures() -> bool:
    """Whether a run that starts now measures itself."""
    return _measures.get()


@contextmanager
def unmeasured() -> Iterator[None]:
    """Runs that start in this block measure nothing in their shards and workers."""
    token = _measures.set(False)
    try:
        yield
    finally:
        _measures.reset(token)
