"""Views as the page is given them, one for each situation that it has to look right in.

They are made, not recorded: what stands in them is what a run of that kind would show, and some
names are as unpleasant as a user's may be.
"""

import math
import random
from collections.abc import Callable
from typing import Any

View = dict[str, Any]
NOW = 1_790_000_000.0
HOUR_S = 3_600.0


def operator(
    name: str, kind: str, chain: str, shards: int, per_s: float | None, **more: Any
) -> View:
    rate = None if per_s is None else round(per_s, 1)
    total = int((per_s or 0) * HOUR_S)
    made = {
        "name": name,
        "kind": kind,
        "chain": chain,
        "shards": shards,
        "records_in": 0 if kind == "source" else total,
        "records_out": 0 if kind == "sink" else total,
        "in_per_s": 0.0 if kind == "source" else rate,
        "out_per_s": 0.0 if kind == "sink" else rate,
        "busy": 0.31,
        "waiting": 0.66,
        "blocked": 0.03,
        "busiest": 0.36,
        "skipped": 0,
        "late": 0,
        "dead_letters": 0,
    }
    return made | more


def edge(
    before: str, after: str, per_s: float | None, routing: str = "on demand", **more: Any
) -> View:
    made = {"from": before, "to": after, "routing": routing, "per_s": per_s, "feedback": False}
    return made | more


def shards_of(operators: list[View], draw: random.Random, workers: int) -> list[View]:
    chains = {made["chain"]: made for made in reversed(operators)}
    rows: list[View] = []
    for chain in dict.fromkeys(made["chain"] for made in operators):
        first = chains[chain]
        count = first["shards"]
        rate = first["out_per_s"] if first["kind"] == "source" else first["in_per_s"]
        for number in range(count):
            share = draw.uniform(0.8, 1.2)
            busy = min(1.0, first["busy"] * share)
            blocked = min(1.0 - busy, first["blocked"] * share)
            per_s = None if rate is None else round(rate / count * share, 1)
            rows.append(
                {
                    "id": f"{chain}:{number}",
                    "chain": chain,
                    "number": number,
                    "worker": len(rows) % workers,
                    "phase": "running",
                    "in_per_s": 0.0 if first["kind"] == "source" else per_s,
                    "out_per_s": 0.0 if first["kind"] == "sink" else per_s,
                    "bytes_in_per_s": None if per_s is None else per_s * 48,
                    "bytes_out_per_s": None if per_s is None else per_s * 40,
                    "busy": round(busy, 3),
                    "waiting": round(1 - busy - blocked, 3),
                    "blocked": round(blocked, 3),
                    "frames_waiting": draw.randint(0, 9),
                    "watermark": int((NOW - 2.5) * 1000),
                    "lag_s": round(draw.uniform(1.9, 3.1), 2),
                    "holds_back": None,
                    "state_bytes": draw.randint(1, 90) * 100_000,
                    "state_keys": draw.randint(100, 90_000),
                    "log_bytes": 0,
                }
            )
    return rows


def workers_of(count: int, draw: random.Random) -> list[View]:
    return [
        {
            "id": number,
            "machine": f"worker-{number % 3}",
            "pid": 4_100 + number,
            "attempt": 0,
            "alive": True,
            "cpu": round(draw.uniform(0.2, 0.9), 3),
            "memory_bytes": draw.randint(180, 420) * 1_000_000,
            "peak_bytes": draw.randint(420, 520) * 1_000_000,
            "collecting": round(draw.uniform(0, 0.02), 4),
        }
        for number in range(count)
    ]


def series(
    per_s: float, draw: random.Random, points: int = 240, dips: tuple[float, ...] = ()
) -> View:
    """A line for each measure; `dips`: where the rate falls to nothing, as shares of the time."""
    at = [NOW - (points - 1 - number) * 1.0 for number in range(points)]
    rows: dict[str, list[float | None]] = {name: [] for name in (
        "in_per_s", "out_per_s", "p50_ms", "p95_ms", "p99_ms", "cpu", "memory_bytes", "behind"
    )}  # fmt: skip
    for number in range(points):
        wave = 1 + 0.12 * math.sin(number / 17) + draw.uniform(-0.04, 0.04)
        since = [number - dip * points for dip in dips if 0 <= number - dip * points < 14]
        rate = per_s * wave
        slow = 1.0
        if since:
            rate = 0.0 if since[0] < 4 else per_s * 1.7
            slow = 40.0 / (1 + since[0])
        p50 = None if since and since[0] < 4 else (0.9 + draw.uniform(0, 0.2)) * slow
        rows["in_per_s"].append(round(rate, 1))
        rows["out_per_s"].append(round(rate * 0.62, 1))
        rows["p50_ms"].append(None if p50 is None else round(p50, 3))
        rows["p95_ms"].append(None if p50 is None else round(p50 * 1.7, 3))
        rows["p99_ms"].append(None if p50 is None else round(p50 * 2.6, 3))
        rows["cpu"].append(round(1.4 * rate / max(per_s, 1.0), 3))
        rows["memory_bytes"].append(640e6 + number * 4e5)
        rows["behind"].append(round(per_s * 0.4 * slow) if since else 0.0)
    return {"at": at, **rows}


def checkpoints(shards: list[View], draw: random.Random, count: int, slowest: str) -> list[View]:
    made: list[View] = []
    for number in range(count):
        phases = [
            {
                "shard": shard["id"],
                "number": count - number + 40,
                "aligned_s": round(draw.uniform(0.001, 0.02), 4),
                "capture_s": round(draw.uniform(0.001, 0.008), 4),
                "upload_s": round(
                    draw.uniform(0.01, 0.06) * (6 if shard["id"] == slowest else 1), 4
                ),
                "bytes": draw.randint(20, 900) * 1_000,
                "forced": False,
            }
            for shard in shards
        ]
        longest = max(sum(row[p] for p in ("aligned_s", "capture_s", "upload_s")) for row in phases)
        made.append(
            {
                "epoch": count - number + 40,
                "started_at": NOW - 2.0 - number * 5.0,
                "at": NOW - 2.0 - number * 5.0 + longest + 0.015,
                "duration_s": round(longest + 0.015, 4),
                "bytes": sum(row["bytes"] for row in phases),
                "failed": None,
                "forced": 0,
                "slowest": slowest,
                "shards": phases,
            }
        )
    return made


def failure(what: str, shards: list[str], at: float, **more: Any) -> View:
    made = {
        "id": f"{what}-{at}",
        "what": what,
        "shards": shards,
        "injected": True,
        "at": at,
        "from_epoch": 31,
        "records_replayed": 48_211,
        "duplicates_suppressed": 9_120,
        "went_back": shards,
        "checkpoints_back": 1,
        "rollback_s": 2.318,
        "detected_ms": 12.4,
        "restarted_ms": 402.7,
        "restored_ms": 611.9,
        "replayed_ms": 812.3,
        "caught_up_ms": 1_046.0,
    }
    return made | more


def view(
    name: str, operators: list[View], edges: list[View], draw: random.Random, **more: Any
) -> View:
    workers = more.pop("worker_count", 4)
    made = {
        "version": 1,
        "pipeline": name,
        "store": f".everstream/{name}",
        "engine": "tasks",
        "protocol": "aligned",
        "interval_s": 5.0,
        "phase": "running",
        "epoch": 60,
        "started_at": NOW - HOUR_S,
        "now": NOW,
        "ended": None,
        "drivers_lost": 0,
        "spark_ui": "http://127.0.0.1:4040",
        "actions": False,
        "configuration": {
            "checkpoint": "aligned, every 5 s",
            "engine": "tasks",
            "master": "local[4]",
            "workers": "4",
            "transport": "auto",
            "heartbeat_timeout": "10s",
        },
        "operators": operators,
        "edges": edges,
        "shards": shards_of(operators, draw, workers),
        "workers": workers_of(workers, draw),
        "series": series(82_000, draw),
        "latency": {},
        "checkpoints": [],
        "failures": [],
        "recovery_line": None,
        "notes": [],
        "advice": None,
    }
    return made | more


def idle() -> View:
    """Everything is there and nothing comes in."""
    draw = random.Random(1)
    nothing = {"busy": 0.0, "waiting": 1.0, "blocked": 0.0, "busiest": None}
    operators = [
        operator("orders", "source", "orders", 1, 0.0, **nothing),
        operator("parse", "operator", "orders", 1, 0.0, **nothing),
        operator("by customer", "operator", "by customer", 2, 0.0, **nothing),
        operator("shipments", "sink", "by customer", 2, 0.0, **nothing),
    ]
    edges = [
        edge("orders", "parse", 0.0),
        edge("parse", "by customer", 0.0, "by key"),
        edge("by customer", "shipments", 0.0),
    ]
    quiet = series(0.0, draw, points=90)
    for name in ("p50_ms", "p95_ms", "p99_ms"):
        quiet[name] = [None] * 90
    made = view("orders-to-shipments", operators, edges, draw, worker_count=2, series=quiet)
    made |= {"epoch": 0, "started_at": NOW - 95}
    for shard in made["shards"]:
        shard |= {
            "frames_waiting": 0,
            "watermark": None,
            "lag_s": None,
            "state_bytes": 0,
            "state_keys": 0,
        }
    return made


def _word_count(per_s: float, draw: random.Random) -> tuple[list[View], list[View]]:
    busy = {"busy": 0.97, "waiting": 0.03, "blocked": 0.0, "busiest": 0.99}
    held = {"busy": 0.22, "waiting": 0.05, "blocked": 0.73, "busiest": 0.99}
    operators = [
        operator("lines", "source", "lines", 2, per_s, **held),
        operator("split", "operator", "lines", 2, per_s, **held, skipped=3),
        operator("count", "operator", "count", 4, per_s, **busy, late=17, dead_letters=2),
        operator("top words", "operator", "top words", 2, per_s * 0.4),
        operator("dashboard", "sink", "top words", 2, per_s * 0.4),
        operator("archive <b>&", "sink", "archive <b>&", 1, per_s * 0.62),
        operator("alerts", "sink", "alerts", 1, 12.0),
    ]
    edges = [
        edge("lines", "split", per_s),
        edge("split", "count", per_s, "by key"),
        edge("count", "top words", round(per_s * 0.4, 1), "by key"),
        edge("top words", "dashboard", round(per_s * 0.4, 1)),
        edge("count", "archive <b>&", round(per_s * 0.62, 1)),
        edge("split", "alerts", 12.0),
    ]
    return operators, edges


LATENCY = {
    "dashboard": {"p50_ms": 0.92, "p95_ms": 1.61, "p99_ms": 2.44},
    "archive <b>&": {"p50_ms": 1.12, "p95_ms": 1.9, "p99_ms": 3.02},
    "alerts": {"p50_ms": None, "p95_ms": None, "p99_ms": None},
}


def busy() -> View:
    """A slow operator, and its source back-pressured by it."""
    draw = random.Random(2)
    operators, edges = _word_count(82_310.4, draw)
    made = view("word-count", operators, edges, draw, latency=LATENCY, actions=True)
    made["checkpoints"] = checkpoints(made["shards"], draw, 20, "count:2")
    curve = [[s, round(0.05 / s + 0.004 * s, 5)] for s in (0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 20, 30)]
    made["advice"] = {"curve": curve, "present_s": 5.0, "best_s": 3.5}
    made["notes"] = [
        {"at": NOW - 3_590, "text": "4 workers are there after 2.1 s", "warning": False},
        {"at": NOW - 300, "text": "the clock of worker-2 is 1.2 s ahead", "warning": True},
    ]
    return made


def failing() -> View:
    """Two failures are over and a third is just being recovered from."""
    draw = random.Random(3)
    operators, edges = _word_count(61_000.0, draw)
    made = view("word-count", operators, edges, draw, latency=LATENCY, phase="restoring", epoch=58)
    made["series"] = series(61_000.0, draw, dips=(0.3, 0.985))
    rows = checkpoints(made["shards"], draw, 18, "count:0")
    rows[3] |= {
        "failed": "count:0 was lost while it was being taken",
        "shards": [],
        "slowest": None,
        "bytes": 0,
    }
    made["checkpoints"] = rows
    made["workers"][2] |= {"alive": False, "cpu": None, "memory_bytes": None, "collecting": None}
    for shard in made["shards"]:
        if shard["worker"] == 2:
            shard |= {"phase": "lost", "in_per_s": None, "out_per_s": None, "busy": None,
                      "waiting": None, "blocked": None}  # fmt: skip
        else:
            shard["phase"] = "restoring"
    everyone = [shard["id"] for shard in made["shards"]]
    pending = dict.fromkeys(("restored_ms", "replayed_ms", "caught_up_ms", "restarted_ms"))
    made["failures"] = [
        failure("worker 1 was killed (SIGKILL)", ["count:0", "top words:0"], NOW - 168, went_back=everyone),
        failure("the driver was lost", [], NOW - 900, injected=False, detected_ms=0.0,
                restarted_ms=3_100.0, restored_ms=5_300.0, replayed_ms=5_800.0, caught_up_ms=6_420.0),
        failure("worker 2 was killed (SIGKILL)", ["split:1"], NOW - 0.4, **pending, records_replayed=0,
                duplicates_suppressed=0, went_back=[], from_epoch=0, checkpoints_back=0, rollback_s=0.0),
    ]  # fmt: skip
    made["failures"].sort(key=lambda row: -float(row["at"]))
    made["drivers_lost"] = 1
    made["notes"] = [
        {"at": NOW - 0.4, "text": "worker 2 is gone: shards lines:1, count:3", "warning": True}
    ]
    return made


def lines() -> View:
    """A loop under HMNR: every shard has its own checkpoints, a log, and a place in the recovery line."""
    draw = random.Random(4)
    operators = [
        operator("edges", "source", "edges", 2, 9_000.0),
        operator("rank", "operator", "rank", 3, 27_000.0, busy=0.7, waiting=0.28, blocked=0.02),
        operator("ranks", "sink", "ranks", 1, 4_000.0),
    ]
    joins = [
        edge("edges", "rank", 9_000.0, "by key"),
        edge("rank", "ranks", 4_000.0),
        edge("rank", "rank", 18_000.0, "by key", feedback=True),
    ]
    made = view(
        "page-rank", operators, joins, draw, protocol="hmnr", interval_s=3.0, worker_count=3
    )
    for shard in made["shards"]:
        shard["log_bytes"] = draw.randint(1, 90) * 1_000_000
    made["recovery_line"] = {
        shard["id"]: {"number": draw.randint(118, 131), "at": NOW - draw.uniform(0.3, 9.0)}
        for shard in made["shards"]
    }
    made["latency"] = {"ranks": {"p50_ms": 4.1, "p95_ms": 9.2, "p99_ms": 20.4}}
    rows = checkpoints(made["shards"], draw, 12, "rank:1")
    for row in rows:
        row["shards"][2]["forced"] = True
        row["forced"] = 1
    made["checkpoints"] = rows
    made["failures"] = [
        failure("worker 1 was killed (SIGKILL)", ["rank:1"], NOW - 61.0, went_back=["rank:1", "rank:2"],
                checkpoints_back=2)
    ]  # fmt: skip
    return made


def many() -> View:
    """Two hundred shards."""
    draw = random.Random(5)
    operators = [
        operator("clicks", "source", "clicks", 64, 2_400_000.0),
        operator("clean", "operator", "clicks", 64, 2_400_000.0),
        operator(
            "sessions",
            "operator",
            "sessions",
            96,
            2_300_000.0,
            busy=0.83,
            waiting=0.1,
            blocked=0.07,
        ),
        operator(
            "enrich", "operator", "enrich", 32, 2_300_000.0, busy=0.5, waiting=0.5, blocked=0.0
        ),
        operator("lake", "sink", "lake", 8, 1_900_000.0),
    ]
    edges = [
        edge("clicks", "clean", 2_400_000.0),
        edge("clean", "sessions", 2_300_000.0, "by key"),
        edge("sessions", "enrich", 2_300_000.0),
        edge("enrich", "lake", 1_900_000.0),
    ]
    made = view("click-sessions", operators, edges, draw, worker_count=40, protocol="unaligned")
    made["latency"] = {"lake": {"p50_ms": 12.1, "p95_ms": 31.0, "p99_ms": 64.4}}
    made["series"] = series(2_400_000.0, draw)
    made["checkpoints"] = checkpoints(made["shards"], draw, 30, "sessions:77")
    made["shards"][140] |= {
        "busy": 1.0,
        "waiting": 0.0,
        "blocked": 0.0,
        "frames_waiting": 64,
        "lag_s": 48.2,
        "holds_back": "shard 77 of 'sessions'",
    }
    return made


def ended() -> View:
    """All is read and shown."""
    made = busy()
    made |= {
        "phase": "done",
        "ended": {"outcome": "finished", "error": None, "at": NOW},
        "actions": False,
    }
    made["spark_ui"] = None
    return made


def failed() -> View:
    """It was given up."""
    made = failing()
    error = "count failed 4 times in 60 s: ValueError: no such word\nMore than --max-restarts 3."
    made |= {
        "phase": "done",
        "ended": {"outcome": "failed", "error": error, "at": NOW},
        "spark_ui": None,
    }
    return made


def starting() -> View:
    """Spark is being started: nothing is measured yet, and much is not known."""
    draw = random.Random(6)
    unknown = {"busy": None, "waiting": None, "blocked": None, "busiest": None}
    operators = [
        operator("lines", "source", "lines", 1, None, **unknown),
        operator("copy", "sink", "lines", 1, None, **unknown),
    ]
    made = view("start", [], [], draw, phase="waiting for workers", epoch=0, interval_s=None)
    made |= {
        "operators": operators,
        "edges": [edge("lines", "copy", None)],
        "shards": [],
        "workers": [],
    }
    made["series"] = {name: [] for name in made["series"]}
    made |= {"started_at": None, "spark_ui": None}
    return made


VIEWS: dict[str, Callable[[], View]] = {
    "idle": idle,
    "starting": starting,
    "busy": busy,
    "failing": failing,
    "lines": lines,
    "many": many,
    "ended": ended,
    "failed": failed,
}
