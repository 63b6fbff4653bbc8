"""Two sources, one stream, two sinks: `union` and `branch`.

Readings of two sensors flow together; those that are out of bounds go to one folder, the rest,
counted per sensor, to another.
"""

from collections.abc import Callable
from typing import Any

import everstream as es


def readings(name: str, low: int, high: int) -> Callable[[int, int], list[Any]]:
    """A function that makes readings number start to stop - 1 of one sensor."""

    def make(start: int, stop: int) -> list[Any]:
        span = high - low
        return [{"sensor": name, "n": n, "value": low + n * 37 % span} for n in range(start, stop)]

    return make


pipeline = es.Pipeline("alarms")
cellar = pipeline.source(es.FromFunction(readings("cellar", 2, 30), total=3000), name="cellar")
attic = pipeline.source(es.FromFunction(readings("attic", -10, 60), total=2000), name="attic")

hot, cold, fine = cellar.union(attic).branch(
    lambda reading: reading["value"] > 40,
    lambda reading: reading["value"] < 0,
    name="bounds",
)
hot.union(cold).sink(es.JsonLines("alarms/"), name="alarms")
(
    fine.key_by(lambda reading: reading["sensor"])
    .fold(init=int, update=lambda count, reading: count + 1, name="counted")
    .sink(es.JsonLines("readings/"), name="readings")
)
if __name__ == "__main__":
    pipeline.run(checkpoint=es.Coordinated(every="2s"), store="checkpoints/alarms")
