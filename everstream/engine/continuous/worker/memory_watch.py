"""Keeps a worker within its memory limit: measures, warns, and at the limit names the operator."""

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, assert_never

from everstream.core.memory_guard import MemoryGuard, Strain
from everstream.engine.continuous.worker.memory import in_words
from everstream.errors import EnvironmentFault
from everstream.runtime.runner import ShardRunner

_STATM: Final = Path("/proc/self/statm")


class MemoryWatch:
    """The memory watch of one worker."""

    def __init__(
        self,
        limit_bytes: int,
        runners: Collection[ShardRunner],
        takes_in: Callable[[ShardRunner], bool],
        warn: Callable[[int, int], None],
    ) -> None:
        """takes_in: whether a shard has input from outside this worker.
        warn: called once with the used bytes and the limit.
        """
        self._guard = MemoryGuard(limit_bytes)
        self._runners = runners
        self._takes_in = takes_in
        self._warn = warn
        self._warned = False

    def holds(self, runner: ShardRunner) -> bool:
        """Whether this shard should take no input for now."""
        return self._guard.strain is Strain.HELD and self._takes_in(runner)

    def look(self, now_s: float) -> None:
        used_bytes = own_memory_bytes()
        if used_bytes is None or not self._guard.look(used_bytes, now_s):
            return
        limit = in_words(self._guard.limit_bytes)
        match self._guard.strain:
            case Strain.NONE | Strain.IN_VAIN:
                pass
            case Strain.HELD:
                if not self._warned:
                    self._warned = True
                    self._warn(used_bytes, self._guard.limit_bytes)
            case Strain.OVER:
                runner, most = max(
                    ((runner, _largest(runner)) for runner in self._runners),
                    key=lambda pair: pair[1][2],
                )
                operator, keys, about_bytes = most
                runner.fail(
                    EnvironmentFault(
                        f"a worker has used all of its {limit} (worker_memory). Most of it is the "
                        f"state of '{operator}' in shard {runner.shard.id.number}: about "
                        f"{_about(keys):,} keys, {in_words(_about(about_bytes))}. Keep that on disk "
                        "with state='disk', give the operator more shards on more workers, or raise worker_memory."
                    )
                )
            case _:
                assert_never(self._guard.strain)


def own_memory_bytes() -> int | None:
    """The memory of this process without pages of files; None if the system does not provide it."""
    try:
        fields = _STATM.read_text().split()
    except OSError:
        return None
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def _about(number: int) -> int:
    """Rounded to one digit, so that the same failure gives the same message when it happens again."""
    return round(number, 1 - len(str(number)))


def _largest(runner: ShardRunner) -> tuple[str, int, int]:
    """The operator with the largest state, its keys, and their approximate size in bytes."""
    sizes = runner.chain.state.sizes()
    if not sizes:
        return (runner.shard.id.operator, 0, 0)
    operator = max(sizes, key=lambda name: sizes[name][1])
    return (operator, *sizes[operator])
