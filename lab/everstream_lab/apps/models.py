"""Models that take long to load: once in each thread, since few of them are made to be shared.

A process that was forked makes its own: an open file would be read by both, each from where the
other has come to.
"""

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def once_per_thread(make: Callable[P, T]) -> Callable[P, T]:
    """The same function, which makes its value the first time a thread asks with these arguments."""
    kept = threading.local()

    @wraps(make)
    def get(*args: P.args, **named: P.kwargs) -> T:
        key = (os.getpid(), args, tuple(named.items()))
        made: dict[object, T] = kept.__dict__.setdefault("made", {})
        if key not in made:
            made[key] = make(*args, **named)
        return made[key]

    return get
