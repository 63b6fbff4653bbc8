"""How much an epoch reads, so that it takes about the requested time.

An epoch has fixed costs, however little it reads: starting a job, saving state. A time limit for
the sources alone would not work, because the operators behind them take time as well. So the number
of records is adjusted by how long the whole of the last epoch took.
"""

FIRST = 1 << 14
LEAST = 1 << 8
MOST = 1 << 40
_SHRINKING = 4.0
_GROWTH = 64.0
_LATE = 1.25
"""An epoch that takes this many times longer than wanted was too large."""
_NOISE = 0.1
"""This share of an epoch's duration may be chance, so records may cost that much."""


class Sizing:
    """The number of records that each source shard reads in an epoch."""

    def __init__(self, every_s: float | None, fixed: int | None = None) -> None:
        """every_s: how long an epoch should take; None if only its size matters.
        fixed: how many records each source shard reads, at most."""
        self.every_s = every_s
        self._most = fixed if fixed is not None else MOST
        self.budget = self._most if every_s is None else min(FIRST, self._most)
        self._fixed_s = 0.0
        """The cost of an epoch that reads nothing."""
        self._before: tuple[int, float] | None = None
        self._started = False

    def note(self, read: int, took_s: float) -> None:
        """The busiest source shard read this many records, and the epoch took this long."""
        if not self._started:  # includes starting processes and loading code: no information
            self._started = True
            return
        self._learn(read, took_s)
        if self.every_s is None:
            return
        # Fixed costs cannot be avoided: at least half of an epoch should be real work.
        wanted_s = max(self.every_s, 2 * self._fixed_s)
        if read >= self.budget or took_s > _LATE * wanted_s:
            work_s = max(took_s - self._fixed_s, _NOISE * took_s, 1e-6)
            factor = min(_GROWTH, max(1 / _SHRINKING, (wanted_s - self._fixed_s) / work_s))
            self.budget = min(self._most, max(LEAST, int(self.budget * factor)))

    def has_more(self, read: int) -> bool:
        """Whether the last epoch ended because it was full: then the next follows at once."""
        return read >= self.budget

    def _learn(self, read: int, took_s: float) -> None:
        """Two epochs of different size separate fixed costs from costs per record."""
        before, self._before = self._before, (read, took_s)
        if before is None or (not 0.8 * read > before[0] and not 0.8 * before[0] > read):
            return
        each_s = max(0.0, (took_s - before[1]) / (read - before[0]))
        fixed_s = min(took_s, max(0.0, took_s - each_s * read))
        self._fixed_s = fixed_s if not self._fixed_s else (self._fixed_s + fixed_s) / 2
