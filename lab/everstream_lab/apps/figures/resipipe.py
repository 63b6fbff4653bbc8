"""ResiPipe's figures 5.2 to 5.13, 6.5 and 6.6: throughput, resources, annotated code.

Published figures are beside ours in a separate chart: a cluster's 48 processes and this
machine's few do not fit on one axis.
"""

from collections.abc import Callable, Mapping

from everstream_lab.apps.cycle.charts import Chart, Series, by_setting, over_time
from everstream_lab.apps.cycle.page import Page
from everstream_lab.apps.figures.runs import Runs
from everstream_lab.apps.interfaces.job import stage_names
from everstream_lab.apps.lookup import application_at

Points = list[tuple[float, float]]

THROUGHPUT: dict[str, dict[str, Points]] = {
    "prime": {
        "DSParLib": [(48, 247084.18)],
        "MPR": [(24, 136354.10)],
        "Open MPI": [(48, 232386.92)],
        "ResiPipe": [(44, 210283.26)],
    },
    "mandelbrot": {
        "DSParLib": [(4, 117.18), (44, 1132.59), (48, 1121.28)],
        "MPR": [(4, 109.46), (24, 895.30)],
        "Open MPI": [(4, 115.91), (48, 1207.91)],
        "ResiPipe": [(4, 115.07), (44, 1548.19), (48, 1516.38)],
    },
    "compress": {
        "DSParLib": [(4, 14.62), (48, 152.49)],
        "MPR": [(4, 13.55), (24, 67.27), (48, 56.49)],
        "Open MPI": [(4, 14.15), (48, 181.52)],
        "ResiPipe": [(4, 14.05), (48, 173.09)],
    },
    "decompress": {
        "DSParLib": [(28, 95.19), (48, 90.74)],
        "MPR": [(20, 88.20)],
        "Open MPI": [(32, 96.94), (48, 95.94)],
        "ResiPipe": [(4, 43.36), (44, 100.18), (48, 99.30)],
    },
    "eye": {
        "DSParLib": [(4, 3.53), (14, 20.37)],
        "MPR": [(4, 0.99), (14, 6.32)],
        "Open MPI": [(4, 3.53), (14, 20.01)],
        "ResiPipe": [(4, 3.52), (14, 20.06)],
    },
    "sentiment": {"DSParLib": [(5, 0.005025)], "ResiPipe": [(5, 0.005008)]},
}
"""Application -> interface -> its points: figures 5.2 to 5.10, and table 5.1."""

ANNOTATED: dict[str, dict[str, Points]] = {
    "mandelbrot": {
        "annotated": [(4, 92.45), (48, 1251.15)],
        "native": [(4, 115.07), (48, 1516.38)],
    },
    "compress": {"annotated": [(4, 6.84), (48, 164.69)], "native": [(4, 14.05), (48, 173.09)]},
    "decompress": {"annotated": [(4, 38.73), (48, 90.67)], "native": [(4, 43.36), (48, 99.30)]},
}
"""Figure 6.6: SPar's generated code against ResiPipe's own; of prime and eye no number is printed."""


OURS = ("threads", "processes", "everstream", "pyspark")


def throughput(application: str) -> Callable[[Page, Runs], None]:
    """Figures 5.2, 5.4, 5.6, 5.8 and 5.10: records per second by processes."""

    def draw(page: Page, runs: Runs) -> None:
        ran = runs.of(application, OURS)
        measured = by_setting(ran.tables["parallelism"], "workers", ("interface",), "here: ")[0]
        page.charts([measured, _published(THROUGHPUT[application])])
        _best(page, ran.tables["parallelism"].to_dicts())

    return draw


def resources(application: str) -> Callable[[Page, Runs], None]:
    """Figures 5.3, 5.5 to 5.13: CPU and memory, with as many workers as were asked for."""

    def draw(page: Page, runs: Runs) -> None:
        page.text("The thesis measured this on each node of a cluster; here there is one machine.")
        ran = runs.of(application, OURS)
        most = int(runs.most)
        names = {
            one.planned.number: one.planned.interface
            for one in ran.outcomes
            if one.planned.workers == most and one.planned.repeat == 0
        }
        page.charts(over_time(ran.tables["monitor"], names)[2:])
        rows = [
            [
                str(row["interface"]),
                f"{row['cpu_percent'] or 0:.0f}",
                f"{(row['memory_kb'] or 0) / 1024:.0f}",
            ]
            for row in ran.tables["parallelism"].to_dicts()
            if row["workers"] == most
        ]
        page.table(("interface", "CPU, % of a core, mean", "memory, MB, most"), rows)

    return draw


def sentiment_graph(page: Page, runs: Runs) -> None:
    """Figure 5.12: the stages of the application with more than one."""
    application = application_at("sentiment")
    names = ["source", *stage_names(application), "sink"]
    page.text(" → ".join(names))
    ran = runs.of("sentiment", ("sequential", "everstream"), workers=runs.most)
    page.charts([_published(THROUGHPUT["sentiment"])])
    _best(page, ran.tables["parallelism"].to_dicts())


def annotated(applications: tuple[str, ...]) -> Callable[[Page, Runs], None]:
    """Figures 6.5 and 6.6: code made from annotations against the hand-written pipeline."""

    def draw(page: Page, runs: Runs) -> None:
        for application in applications:
            page.heading(application)
            ran = runs.of(application, ("everstream", "annotated"))
            charts = by_setting(ran.tables["parallelism"], "workers", ("interface",), "here: ")[:1]
            if application in ANNOTATED:
                charts.append(_published(ANNOTATED[application]))
            page.charts(charts)

    return draw


def _published(curves: Mapping[str, Points]) -> Chart:
    chart = Chart("published, on a cluster", "processes", "records per second", whole_steps=True)
    chart.series = [Series(name, points) for name, points in curves.items()]
    return chart


def _best(page: Page, rows: list[dict[str, object]]) -> None:
    best: dict[str, dict[str, object]] = {}
    for row in rows:
        name = str(row["interface"])
        if name not in best or float(str(row["throughput"])) > float(str(best[name]["throughput"])):
            best[name] = row
    page.table(
        ("interface", "best, items/s", "with workers"),
        [[name, f"{row['throughput']:.6g}", str(row["workers"])] for name, row in best.items()],
    )
