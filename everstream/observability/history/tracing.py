"""Recoveries and checkpoints as OpenTelemetry spans, for programs that use tracing.

The extra `otel` installs OpenTelemetry; your program sets a tracer provider, which sends the spans.
Without either, this costs nothing. A span is made when its recovery or checkpoint is over, with the
original times.
"""

from collections.abc import Callable
from typing import Any

from everstream.events import (
    CheckpointAborted,
    EpochStable,
    RecoveryUpdated,
    RunEnded,
    RunEvent,
    RunStarted,
)

STEPS = ("detected_ms", "restarted_ms", "restored_ms", "replayed_ms", "caught_up_ms")
NAMES = ("detect", "restart", "restore", "replay", "catch up")


def tracing() -> Callable[[RunEvent], None] | None:
    """Turns events into spans; None if OpenTelemetry is not installed."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError:
        return None
    return Tracing(trace.get_tracer("everstream")).take


class Tracing:
    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._pipeline = ""
        self._unfinished: dict[str, RecoveryUpdated] = {}

    def take(self, event: RunEvent) -> None:
        match event:
            case RunStarted(pipeline=pipeline):
                self._pipeline = pipeline
            case EpochStable():
                self._checkpoint(event)
            case CheckpointAborted(epoch=epoch, reason=reason, at=at):
                span = self._begin("checkpoint", at, {"everstream.epoch": epoch})
                self._fail(span, reason)
                span.end(_ns(at))
            case RecoveryUpdated():
                self._unfinished[event.id] = event
                if event.caught_up_ms is not None:
                    self._recovery(self._unfinished.pop(event.id))
            case RunEnded():
                for failure in self._unfinished.values():
                    self._recovery(failure)
                self._unfinished = {}

    def _checkpoint(self, event: EpochStable) -> None:
        shards = event.shards
        span = self._begin(
            "checkpoint",
            event.at - event.duration_s,
            {
                "everstream.epoch": event.epoch,
                "everstream.bytes": event.bytes,
                "everstream.slowest": event.slowest or "",
                "everstream.shards": [shard.shard for shard in shards],
                "everstream.aligned_s": [shard.aligned_s for shard in shards],
                "everstream.capture_s": [shard.capture_s for shard in shards],
                "everstream.upload_s": [shard.upload_s for shard in shards],
            },
        )
        span.end(_ns(event.at))

    def _recovery(self, failure: RecoveryUpdated) -> None:
        from opentelemetry import trace

        at = failure.at
        times = {
            name: getattr(failure, step_ms) for name, step_ms in zip(NAMES, STEPS, strict=True)
        }
        known = {name: ms for name, ms in times.items() if ms is not None}
        span = self._begin(
            "recovery",
            at,
            {
                "everstream.what": failure.what,
                "everstream.injected": failure.injected,
                "everstream.shards": list(failure.shards),
                "everstream.went_back": list(failure.went_back),
                "everstream.from_epoch": failure.from_epoch,
                "everstream.records_replayed": failure.records_replayed,
                "everstream.duplicates_suppressed": failure.duplicates_suppressed,
            },
        )
        inside = trace.set_span_in_context(span)
        before_ms = 0.0
        for name, ms in known.items():
            step = self._begin(name, at + before_ms / 1000, {}, inside)
            before_ms = max(before_ms, ms)
            step.end(_ns(at + before_ms / 1000))
        if failure.caught_up_ms is None:
            self._fail(span, "the run ended before it had caught up")
        span.end(_ns(at + before_ms / 1000))

    def _begin(self, name: str, at: float, attributes: dict[str, Any], context: Any = None) -> Any:
        attributes = {"everstream.pipeline": self._pipeline, **attributes}
        return self._tracer.start_span(
            name, context=context, start_time=_ns(at), attributes=attributes
        )

    def _fail(self, span: Any, why: str) -> None:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR, why)


def _ns(at: float) -> int:
    return int(at * 1e9)
