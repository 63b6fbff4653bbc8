"""Recoveries and checkpoints as OpenTelemetry spans, for programs that have set up tracing.

The extra `otel` brings OpenTelemetry; the program says where spans go (a tracer provider). Without
either, this costs nothing. Spans are made when what they tell is over, with the times it had.
"""

from collections.abc import Callable
from typing import Any

from everstream.observability.history.entries import Entry

STEPS = ("detected_ms", "restarted_ms", "restored_ms", "replayed_ms", "caught_up_ms")
NAMES = ("detect", "restart", "restore", "replay", "catch up")


def tracing() -> Callable[[Entry], None] | None:
    """What makes spans of entries; None if OpenTelemetry is not installed."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError:
        return None
    return Tracing(trace.get_tracer("everstream")).take


class Tracing:
    """Spans of one run."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._pipeline = ""
        self._unfinished: dict[str, Entry] = {}

    def take(self, entry: Entry) -> None:
        match entry["kind"]:
            case "run":
                self._pipeline = entry["pipeline"]
            case "checkpoint":
                self._checkpoint(entry)
            case "checkpoint_failed":
                told = {"everstream.epoch": entry["epoch"]}
                span = self._begin("checkpoint", entry["at"], told)
                self._fail(span, entry["reason"])
                span.end(_ns(entry["at"]))
            case "failure":
                self._unfinished[entry["id"]] = entry
                if entry["caught_up_ms"] is not None:
                    self._recovery(self._unfinished.pop(entry["id"]))
            case "end":
                for failure in self._unfinished.values():
                    self._recovery(failure)
                self._unfinished = {}

    def _checkpoint(self, entry: Entry) -> None:
        shards = entry["shards"]
        span = self._begin(
            "checkpoint",
            entry["at"] - entry["duration_s"],
            {
                "everstream.epoch": entry["epoch"],
                "everstream.bytes": entry["bytes"],
                "everstream.slowest": entry["slowest"] or "",
                "everstream.shards": [shard["shard"] for shard in shards],
                "everstream.aligned_s": [shard["aligned_s"] for shard in shards],
                "everstream.capture_s": [shard["capture_s"] for shard in shards],
                "everstream.upload_s": [shard["upload_s"] for shard in shards],
            },
        )
        span.end(_ns(entry["at"]))

    def _recovery(self, failure: Entry) -> None:
        from opentelemetry import trace

        at = failure["at"]
        times = {name: failure[step] for name, step in zip(NAMES, STEPS, strict=True)}
        known = {name: ms for name, ms in times.items() if ms is not None}
        span = self._begin(
            "recovery",
            at,
            {
                "everstream.what": failure["what"],
                "everstream.injected": failure["injected"],
                "everstream.shards": failure["shards"],
                "everstream.went_back": failure["went_back"],
                "everstream.from_epoch": failure["from_epoch"],
                "everstream.records_replayed": failure["records_replayed"],
                "everstream.duplicates_suppressed": failure["duplicates_suppressed"],
            },
        )
        inside = trace.set_span_in_context(span)
        before_ms = 0.0
        for name, ms in known.items():
            step = self._begin(name, at + before_ms / 1000, {}, inside)
            before_ms = max(before_ms, ms)
            step.end(_ns(at + before_ms / 1000))
        if failure["caught_up_ms"] is None:
            self._fail(span, "the run ended before it had caught up")
        span.end(_ns(at + before_ms / 1000))

    def _begin(self, name: str, at: float, told: dict[str, Any], context: Any = None) -> Any:
        attributes = {"everstream.pipeline": self._pipeline, **told}
        return self._tracer.start_span(
            name, context=context, start_time=_ns(at), attributes=attributes
        )

    def _fail(self, span: Any, why: str) -> None:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR, why)


def _ns(at: float) -> int:
    return int(at * 1e9)
