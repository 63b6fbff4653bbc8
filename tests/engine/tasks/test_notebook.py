"""What a notebook shows of runs."""

from html.parser import HTMLParser

import everstream as es
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.ids import Epoch
from everstream.core.orders import Outcome
from everstream.engine.handle import RunHandle
from everstream.engine.reporting.notebook import run_html
from everstream.engine.result import RunResult
from everstream.events import Note
from tests.observability.ui.views import VIEWS, failing

NASTY = "<script>alert('x')</script>&"


class Read(HTMLParser):
    """The tags and the texts of some HTML; all that is opened must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def a_result() -> RunResult:
    report = RecoveryReport(
        f"worker 1 was killed {NASTY}",
        ("map:0",),
        injected=True,
        detected_s=10.1,
        failed_s=10.0,
        restored_s=10.5,
        caught_up_s=11.0,
        from_epoch=Epoch(3),
        records_replayed=1_234,
    )
    return RunResult(
        pipeline=NASTY,
        outcome=Outcome.FINISHED,
        wall_s=12.5,
        startup_s=1.0,
        counts={"numbers": (0, 5_000), NASTY: (5_000, 4_990)},
        sources=("numbers",),
        sinks=(NASTY,),
        recoveries=[report],
        recovery_count=1,
        events=[Note("input", NASTY)],
        skipped={NASTY: 10},
    )


def test_a_result_shows_counts_and_failures_and_escapes_every_name() -> None:
    shown = Read(a_result()._repr_html_())
    assert "script" not in shown.tags
    assert shown.texts.count(NASTY) == 3  # the pipeline, the operator, the note
    assert "4,990" in shown.texts and "1,000 ms" in shown.texts and "1,234" in shown.texts


def test_a_view_shows_rates_and_what_is_not_known_as_a_dash() -> None:
    for name, make in VIEWS.items():
        shown = Read(run_html(make()))
        assert make()["pipeline"] in shown.texts, name
    shown = Read(run_html(failing()))
    assert "61,000/s" in shown.texts and "archive <b>&" in shown.texts
    assert any("recovering" in text for text in shown.texts)


def test_a_run_that_was_just_started_shows_itself() -> None:
    graph = es.Pipeline("soon").source(es.Range(3)).collect().graph
    run = RunHandle(graph, True, lambda handle: a_result())
    assert "soon" in Read(run._repr_html_()).texts
