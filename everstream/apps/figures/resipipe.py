"""ResiPipe's figures 5.2 to 5.13, 6.5 and 6.6: throughput, resources, annotated code.

What was published stands beside ours in a chart of its own: a cluster's 48 processes and this
machine's few do not fit on one axis.
"""

from collections.abc import Callable, Mapping

from everstream.apps.cycle.charts import Chart, Series
from everstream.apps.cycle.curves import by_setting, over_time
from everstream.apps.cycle.page import Page
from everstream.apps.figures.published import ANNOTATED, THROUGHPUT, Points
from everstream.apps.figures.runs import Runs
from everstream.apps.interfaces.job import stage_names
from everstream.apps.lookup import application_at

OURS = ("threads", "processes", "everstream", "pyspark")


def throughput(application: str) -> Callable[[Page, Runs], None]:
    """Figures 5.2, 5.4, 5.6, 5.8 and 5.10: records per second by processes."""

    def draw(page: Page, runs: Runs) -> None:
        ran = runs.of(application, OURS)
        ours = by_setting(ran.tables["parallelism"], "workers", ("interface",), "here: ")[0]
        page.charts([ours, _published(THROUGHPUT[application])])
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
