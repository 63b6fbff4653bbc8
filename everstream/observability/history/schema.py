"""The JSON schema of the view: the answer of `/api/schema`, which tests check real views against."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from everstream.observability.history.flow import QUANTILES
from everstream.observability.history.run_view import POINTS, SERIES, VERSION
from everstream.observability.history.tracing import STEPS

Schema = dict[str, Any]


def _is(kind: str, says: str = "", **more: Any) -> Schema:
    return {"type": kind, **more, **({"description": says} if says else {})}


_text, _number, _flag = partial(_is, "string"), partial(_is, "number"), partial(_is, "boolean")
_count = partial(_is, "integer", minimum=0)


def _or_null(kind: str, says: str = "") -> Schema:
    return {**_is(kind, says), "type": [kind, "null"]}


def _or_nothing(schema: Schema) -> Schema:
    return {"anyOf": [{"type": "null"}, schema]}


def _object(**properties: Schema) -> Schema:
    """Exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _many(item: Schema, most: int | None = None, says: str = "") -> Schema:
    limit = {} if most is None else {"maxItems": most}
    return _is("array", says, items=item, **limit)


def _each(names: Iterable[str], schema: Schema) -> dict[str, Schema]:
    return dict.fromkeys(names, schema)


def _by_name(value: Schema, says: str = "") -> Schema:
    return {"type": "object", "additionalProperties": value, "description": says}


_SHARE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_RATE = _or_null("number", "per second, over the last seconds; null if not known")
_WALL = "seconds since 1970"
_MS = _or_null("number", "milliseconds after the failure; null: not yet")

_OPERATOR = _object(
    name=_text(),
    kind={"enum": ["source", "operator", "sink"]},
    chain=_text("the first operator of those that share its shards"),
    shards=_count(),
    records_in=_or_null("integer", "each record counted once"),
    records_out=_or_null("integer"),
    in_per_s=_RATE,
    out_per_s=_RATE,
    busy={**_SHARE, "description": "share of the time, on average over its shards"},
    waiting={**_SHARE, "description": "share of the time with nothing to do"},
    blocked={**_SHARE, "description": "back-pressured: downstream operators have no room"},
    busiest={**_SHARE, "description": "the busy share of the busiest shard"},
    skipped=_or_null("integer", "records skipped because of an error"),
    late=_or_null("integer", "records that arrived after their window had closed"),
    dead_letters=_or_null("integer", "skipped records that were kept as dead letters"),
)
_EDGE = _object(
    **{"from": _text()},
    to=_text(),
    routing={"enum": ["fused", "on demand", "by key", "broadcast"]},
    per_s=_RATE,
    feedback=_flag("closes a cycle"),
)
_SHARD = _object(
    id=_text("CHAIN:NUMBER"),
    chain=_text(),
    number=_count(),
    worker=_count(),
    phase=_text("the run's phase, or 'lost' while its worker is gone"),
    **_each(("in_per_s", "out_per_s", "bytes_in_per_s", "bytes_out_per_s"), _RATE),
    **_each(("busy", "waiting", "blocked"), _SHARE),
    watermark=_or_null("integer", "milliseconds since 1970"),
    lag_s=_or_null("number", "how far the watermark is behind the clock"),
    holds_back=_or_null("string", "what holds event time back here, if others are ahead of it"),
    **_each(("frames_waiting", "state_bytes", "state_keys", "log_bytes"), _or_null("integer")),
)
_WORKER = _object(
    id=_count(),
    machine=_or_null("string"),
    **_each(("pid", "attempt", "memory_bytes", "peak_bytes"), _or_null("integer")),
    alive=_flag(),
    cpu=_or_null("number", "cores"),
    collecting=_or_null("number", "share of the time in garbage collection"),
)
_CHECKPOINT = _object(
    epoch=_count(),
    started_at=_or_null("number", _WALL),
    duration_s=_or_null("number"),
    bytes=_or_null("integer"),
    failed=_or_null("string", "why it failed; null if it is stable"),
    forced=_count("shards that the protocol forced to take it"),
    slowest=_or_null("string", "the shard that took longest"),
    shards=_many(
        _object(
            shard=_text(),
            number=_count(),
            aligned_s=_number("how long inputs were blocked until all markers had arrived"),
            capture_s=_number("how long the shard was paused"),
            upload_s=_number(),
            bytes=_count(),
            forced=_flag(),
        )
    ),
    at=_number(f"when it became stable or was given up; {_WALL}"),
)
_FAILURE = _object(
    id=_text(),
    what=_text(),
    shards=_many(_text()),
    injected=_flag("it was requested"),
    at=_number(_WALL),
    from_epoch=_count("the epoch that the run rolled back to"),
    records_replayed=_count(),
    duplicates_suppressed=_count(),
    went_back=_many(_text(), says="shards that rolled back to a checkpoint"),
    checkpoints_back=_count(),
    rollback_s=_number(),
    **_each(STEPS, _MS),
)
_SERIES: Schema = {
    **_object(at=_many(_number(_WALL), POINTS), **_each(SERIES, _many(_or_null("number"), POINTS))),
    "description": f"columns of equal length, at most {POINTS} points, older ones further apart",
}

VIEW: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "The view of a run",
    **_object(
        version={"const": VERSION},
        **_each(("pipeline", "engine", "protocol", "spark_ui"), _or_null("string")),
        store=_or_null("string", "without secrets"),
        interval_s=_or_null("number", "between two checkpoints; null: not by time"),
        phase=_text(),
        epoch=_count("the newest stable epoch"),
        started_at=_or_null("number", _WALL),
        now=_number(_WALL),
        ended=_or_nothing(_object(outcome=_text(), error=_or_null("string"), at=_number(_WALL))),
        drivers_lost=_count(),
        actions=_flag("whether /api/actions is available"),
        configuration=_by_name(_text()),
        operators=_many(_OPERATOR),
        edges=_many(_EDGE),
        shards=_many(_SHARD),
        workers=_many(_WORKER),
        series=_SERIES,
        latency=_by_name(
            _object(**_each(QUANTILES, _or_null("number"))),
            "sink -> from source to sink, over the last seconds",
        ),
        checkpoints=_many(_CHECKPOINT, 100, "newest first"),
        failures=_many(_FAILURE, 200, "newest first"),
        recovery_line=_or_nothing(
            _by_name(_object(number=_count(), at=_number(_WALL)), "shard -> its checkpoint")
        ),
        notes=_many(_object(at=_number(_WALL), text=_text(), warning=_flag()), 200, "newest first"),
        advice=_or_nothing(
            _object(
                curve=_many(
                    _many(_number(), 2), says="[interval in seconds, share of the time it costs]"
                ),
                present_s=_number(),
                best_s=_number(),
            )
        ),
    ),
}
