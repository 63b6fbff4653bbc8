"""A tiny inventory: three steps that leave a trace, of which one can be made to wait or to fail."""

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from everstream_lab.reproduce.exhibit import Exhibit, Found, Panel, Quantities, Statement
from everstream_lab.reproduce.experiments import Effort, Experiment, Inventory, Step, Tell


def measure(number: int, trace: Path, folder: Path, tell: Tell) -> Quantities:
    """Waits for ever if there is a file that says so: only being killed ends it."""
    tell("measuring")
    (folder / "own").write_text("files of its own")
    with (trace / "performed").open("a") as file:
        file.write(f"{number} {os.getpid()}\n")
    while (trace / f"wait-{number}").exists():
        time.sleep(0.01)
    if (trace / f"fail-{number}").exists():
        raise ValueError("as it was told")
    return {"speed": [("ours", "one", 10.0 + number), ("ours", "two", 20.0)]}


def steps(trace: Path, effort: Effort) -> Sequence[Step]:
    return [Step("run", number, 1.0, partial(measure, number, trace)) for number in range(3)]


def speed(found: Found) -> float | None:
    return found.value("speed", "ours", "one")


def doubled(found: Found) -> Quantities:
    speed_now = speed(found)
    return {} if speed_now is None else {"double": [("ours", 2, 2 * speed_now)]}


def inventory(trace: Path) -> Inventory:
    experiment = Experiment("tiny-speed", "tiny", "everstream tiny", partial(steps, trace))
    statements = (
        Statement("the speed", 11.0, speed),
        Statement("the least speed", 5.0, speed, "at least", because="it is tiny"),
        Statement("the most speed", 5.0, speed, "at most", otherwise="it is too fast"),
        Statement("what nobody measured", 1.0, lambda found: None),
    )
    return Inventory(
        {"tiny": "Tiny: a paper of one table"},
        (experiment,),
        (
            Exhibit("tiny", "table 1", "how fast it is", ("tiny-speed",), "none", statements,
                    (Panel("speed", "bars", "", "1/s"),), {"speed": [("theirs", "one", 11.0)]},
                    {"speed": [("theirs", "one", 0.5)]}),
            Exhibit("tiny", "figure 2", "twice as fast", ("tiny-speed",), "none",
                    (Statement("twice the speed", 22.0, lambda found: found.value("double", "ours", 2)),),
                    derive=doubled),
        ),
        {"tiny": "figure 1 is a drawing"},
    )  # fmt: skip


def performed(trace: Path) -> list[int]:
    """Which steps were performed, in order."""
    return [int(line.split()[0]) for line in (trace / "performed").read_text().splitlines()]


def processes(trace: Path) -> list[int]:
    return [int(line.split()[1]) for line in (trace / "performed").read_text().splitlines()]
