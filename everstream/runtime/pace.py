"""How many records a shard takes at once, so that one step lasts about a given time and no longer.

Nothing interrupts a step: markers, stops and the other shards of a worker wait for its end. The
cost of a record is learned while running, from steps that took long enough to measure: after a
quick one, more records are tried. A step has a fixed cost and a cost per record. Steps are cut to
the time they may take, but never so short that the fixed cost is more than a fifth of them.
"""

STEP_S = 0.05
"""How long a step should take at most."""
FIRST = 16
"""Records of the first steps, when nothing is known."""
UNLIMITED = 1 << 31
_ENOUGH = 1 << 17
"""More than any batch has: a shard that takes this many is fast."""
_GROWTH = 4
"""After a quick step, this many times its records are tried next: they will fit."""
_SMOOTHING = 0.3
_PROBE_EVERY = 8


class Pace:
    """What one shard has learned. `step_s` 0: no limit."""

    def __init__(self, step_s: float = STEP_S) -> None:
        self._step_s = step_s
        self.most = FIRST if step_s > 0 else UNLIMITED
        """Records the next step may have: as many as fit, but not many times what was tried."""
        self.fits = UNLIMITED
        """Records that fit into a step, by everything known."""
        self._fixed_s = 0.0
        self._each_s = 0.0
        self._turn = 0
        self._known = False
        self._mean_n = self._mean_s = self._mean_nn = self._mean_ns = 0.0

    def take(self) -> int:
        """Records the next step may have.

        Now and then half of them: steps of one size cannot tell the fixed cost from the cost per
        record.
        """
        if self.most == UNLIMITED:
            return UNLIMITED
        self._turn += 1
        if self._turn % _PROBE_EVERY:
            return self.most
        return self.most // 2 if self.most > 1 else 2

    def note(self, records: int, took_s: float) -> None:
        """A step with `records` records took `took_s`."""
        if not records or not self._step_s:
            return
        if took_s * _GROWTH < self._step_s:
            if 2 * records >= self.most:  # about as many as were allowed
                self._try(_GROWTH * records)
            return
        self._learn(records, took_s)
        share_s = max(self._step_s - self._fixed_s, 4 * self._fixed_s)
        tried = _GROWTH * max(records, int(self._mean_n))
        fits = share_s / self._each_s if self._each_s > 0 else UNLIMITED
        self.fits = max(1, int(fits)) if fits < _ENOUGH else UNLIMITED
        self.most = min(self.fits, tried) if tried < _ENOUGH else self.fits

    def _try(self, records: int) -> None:
        """It is quick now, whatever was learned when it, or the machine, was slow."""
        self._known, self._fixed_s, self._each_s = False, 0.0, 0.0
        self.fits = UNLIMITED
        self.most = records if records < _ENOUGH else UNLIMITED

    def _learn(self, records: int, took_s: float) -> None:
        expected_s = self._fixed_s + self._each_s * records
        # Far from what was expected: the cost has changed, or the machine has stalled. If it
        # stalled, the next step will be far from what is expected now, and the price is a few small
        # steps.
        if not self._known or not expected_s / 2 <= took_s <= 4 * expected_s:
            self._known = True
            self._fixed_s, self._each_s = 0.0, took_s / records
            self._mean_n, self._mean_s = float(records), took_s
            self._mean_nn, self._mean_ns = float(records * records), records * took_s
            return
        w = _SMOOTHING
        self._mean_n += w * (records - self._mean_n)
        self._mean_s += w * (took_s - self._mean_s)
        self._mean_nn += w * (records * records - self._mean_nn)
        self._mean_ns += w * (records * took_s - self._mean_ns)
        spread = self._mean_nn - self._mean_n * self._mean_n
        if spread > (0.1 * self._mean_n) ** 2:
            slope = (self._mean_ns - self._mean_n * self._mean_s) / spread
            self._each_s = min(max(0.0, slope), self._mean_s / self._mean_n)
            self._fixed_s = self._mean_s - self._each_s * self._mean_n
        else:
            self._fixed_s = min(self._fixed_s, self._mean_s)
            self._each_s = (self._mean_s - self._fixed_s) / self._mean_n
