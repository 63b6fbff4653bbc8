"""A program whose source gives numbers up to where a test has opened a gate, and what must come out.

So a test knows how far a run can have come when it kills something.
"""

from collections import Counter
from pathlib import Path

TOTAL = 60_000
PROGRAM = f"""
from pathlib import Path

import everstream as es
from everstream.connectors import END, Reader

GATE = Path("gate").absolute()

class Gated(es.Source):
    '''Whole numbers, up to where the test has opened the gate.'''
    max_shards = 1

    def open(self, shard, shards):
        return GatedReader()

class GatedReader(Reader):
    offset = 0

    def seek(self, offset):
        self.offset = offset

    def read(self):
        if self.offset == {TOTAL}:
            return END
        until = min(self.offset + 500, int(GATE.read_text()))
        batch = list(range(self.offset, until))
        self.offset = until
        return batch or None

class Amount:
    def __init__(self, cents):
        self.cents = cents

pipeline = es.Pipeline("steady")
(
    pipeline.source(Gated(), name="numbers")
    .map(Amount)
    .key_by(lambda amount: amount.cents % 10)
    .fold(init=int, update=lambda sum, amount: sum + amount.cents, name="sum", shards=2)
    .sink(es.JsonLines("out/"), name="out")
)
if __name__ == "__main__":
    raise SystemExit("this part must not run")
"""


def prepare(folder: Path, gate: int) -> None:
    (folder / "steady.py").write_text(PROGRAM)
    open_gate(folder, gate)


def open_gate(folder: Path, gate: int) -> None:
    (folder / "gate.tmp").write_text(str(gate))
    (folder / "gate.tmp").rename(folder / "gate")


def expected() -> Counter[tuple[int, int]]:
    sums, counts = Counter[int](), Counter[tuple[int, int]]()
    for number in range(TOTAL):
        sums[number % 10] += number
        counts[number % 10, sums[number % 10]] += 1
    return counts
