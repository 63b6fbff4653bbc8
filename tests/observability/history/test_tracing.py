"""RecoveryUpdates and checkpoints as OpenTelemetry's own exporter sees them."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.engine.reporting.building import recovery_updated
from everstream.events import CheckpointAborted, RecoveryUpdated, RunEnded, RunEvent
from everstream.observability.history.tracing import Tracing, tracing
from tests.observability.history.telling import START, checkpoint, run


def spans(*told: RunEvent) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracing(provider.get_tracer("test"))
    for event in (run(), *told):
        tracer.take(event)
    return list(exporter.get_finished_spans())


def report(**times: float) -> RecoveryUpdated:
    failure = RecoveryReport("worker 1", ("fold:0",), True, detected_s=10.1, failed_s=10.0)
    for name, at_s in times.items():
        setattr(failure, name, at_s)
    return recovery_updated(failure, "x", START)


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None and span.end_time is not None
    return round(span.start_time / 1e9 - START, 3), round(span.end_time / 1e9 - START, 3)


def test_a_recovery_is_one_span_with_its_steps_inside_once_it_is_over() -> None:
    times = {"restarted_s": 10.5, "restored_s": 10.6, "replayed_s": 10.6, "caught_up_s": 11.0}
    *steps, whole = spans(report(), report(**times))
    assert whole.name == "recovery" and seconds(whole) == (0.0, 1.0)
    assert [(step.name, *seconds(step)) for step in steps] == [
        ("detect", 0.0, 0.1),
        ("restart", 0.1, 0.5),
        ("restore", 0.5, 0.6),
        ("replay", 0.6, 0.6),
        ("catch up", 0.6, 1.0),
    ]
    assert whole.context is not None
    assert {step.parent and step.parent.span_id for step in steps} == {whole.context.span_id}
    assert whole.attributes and whole.attributes["everstream.pipeline"] == "told"


def test_a_recovery_that_came_to_no_end_is_an_error() -> None:
    *_, whole = spans(report(restarted_s=10.5), RunEnded("failed", "x", at=START + 9))
    assert not whole.status.is_ok and seconds(whole) == (0.0, 0.5)


def test_a_checkpoint_is_a_span_and_one_that_was_given_up_an_error() -> None:
    stable, failed = spans(checkpoint(1, 7), CheckpointAborted(8, "disk full", at=START + 2))
    assert stable.name == "checkpoint" and seconds(stable) == (0.75, 1.0)
    assert stable.attributes and stable.attributes["everstream.epoch"] == 7
    assert stable.attributes["everstream.slowest"] == "fold:1"
    assert not failed.status.is_ok and failed.status.description == "disk full"


def test_a_program_that_has_set_up_no_tracing_pays_nothing_and_sees_nothing() -> None:
    take = tracing()
    assert take is not None
    take(checkpoint(1, 1))
