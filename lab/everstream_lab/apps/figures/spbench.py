"""SPBench's figures 6 to 16: what its applications are like, batches, and load patterns.

The paper prints few numbers: what can be checked is the shape, and the sentence that goes with it.
"""

import re
from collections.abc import Callable, Sequence

from everstream.connectors.generate.load import Load, Pattern
from everstream_lab.apps.cycle.charts import batch_over_time, by_setting, over_time
from everstream_lab.apps.cycle.page import Page
from everstream_lab.apps.figures.runs import Ran, Runs

FARMS = ("compress", "lane", "face", "ferret")
BOTH = ("processes", "everstream")


def characterisation(page: Page, runs: Runs) -> None:
    """Figure 6: each application, sequentially, from moment to moment."""
    page.text("In the paper: CPU about 100 %; bzip2 hardly varies, ferret by up to 6 items/s.")
    for application in FARMS:
        ran = runs.of(application, ["sequential"])
        page.heading(application)
        page.charts(over_time(ran.tables["monitor"], ran.names()))


def parallelism(page: Page, runs: Runs) -> None:
    """Figure 7: latency and throughput by the number of workers."""
    page.text("In the paper: throughput rises with workers until the cores are used up.")
    for application in FARMS:
        ran = runs.of(application, BOTH)
        page.heading(application)
        page.charts(by_setting(ran.tables["parallelism"], "workers", ("interface",)))


def live_batch(application: str) -> Callable[[Page, Runs], None]:
    """Figures 8 and 9: the batch grows from 1 to 10 during the run."""

    def draw(page: Page, runs: Runs) -> None:
        page.text("In the paper: latency rises with the batch, throughput does not change.")
        ran = runs.of(application, BOTH, batch="1..10", workers=runs.most)
        monitor, names = ran.tables["monitor"], ran.names()
        page.charts([*over_time(monitor, names)[:2], batch_over_time(monitor, names)])

    return draw


def static_batch(page: Page, runs: Runs) -> None:
    """Figures 10 and 11, which differ in the machine: batches of 1 to 16, by workers."""
    page.text("In the paper: latency grows with the batch; throughput hardly gains.")
    for interface in BOTH:
        ran = runs.of("lane", [interface], batch="1,2,4,8,16")
        page.heading(interface)
        page.charts(by_setting(ran.tables["parallelism"], "workers", ("batch",)))
        page.charts(by_setting(ran.tables["parallelism"], "batch", ("workers",)))


def under(
    runs: Runs, application: str, name: Pattern, interfaces: Sequence[str]
) -> tuple[str, Ran]:
    """The load in words, and the runs under it; it is calibrated by a run at full speed."""
    sample = runs.of(application, ["everstream"], workers=runs.most).outcomes[0]
    result = {"records_per_s": sample.items_per_s, "wall_s": sample.wall_s}
    load = Load.calibrated(name, result)
    assert load.text is not None
    return load.text, runs.of(application, interfaces, workers=runs.most, pattern=load.text)


def pattern(name: Pattern, applications: Sequence[str]) -> Callable[[Page, Runs], None]:
    """Figures 12 to 16: a load pattern, calibrated by a run at full speed."""

    def draw(page: Page, runs: Runs) -> None:
        page.text(
            "As in the paper: from 10 to 110 % of what an unpaced run of Everstream's gave, three "
            "periods in its time (one, if it rises or falls once), and no catching up."
        )
        for application in applications:
            text, ran = under(runs, application, name, BOTH)
            rounded = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.3g}", text)
            page.heading(f"{application}: {rounded}")
            page.charts(over_time(ran.tables["monitor"], ran.names())[:2])

    return draw
