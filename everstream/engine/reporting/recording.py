"""Turns what a run tells into the entries of its history, for its store and for whoever watches.

It listens on the driver's thread like any other listener, and only makes small plain values there;
whoever stores them does so elsewhere.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from pyspark import SparkContext

from everstream.core.manifest import EpochManifest
from everstream.core.measures import Measures
from everstream.core.plan import Plan
from everstream.core.registry import PROTOCOLS, name_of
from everstream.engine.kills import Kill
from everstream.engine.options import RunConfig
from everstream.engine.reporting.listener import Listener, RunStatus
from everstream.engine.reporting.progress import Both
from everstream.observability.history import entries
from everstream.observability.history.entries import About, Entry
from everstream.observability.history.failures import Failures
from everstream.observability.history.tracing import tracing
from everstream.observability.history.writer import HistoryWriter
from everstream.pipeline.checkpointing import Coordinated, EngineName
from everstream.state.signing import blobs_at

SAMPLE_EVERY_S = 0.5


class Recorder(Listener):
    """Tells one run as entries."""

    def __init__(self, about: About, tell: Callable[[Entry], None]) -> None:
        self._about = about
        self._tell = tell
        self._failures = Failures(about.run)
        self._snapshot: RunStatus | None = None
        self._newest: EpochManifest | None = None
        self._measured = False
        self._rescales = 0
        self._sample_due_s = 0.0

    def started(self, plan: Plan, total_records: int | None) -> None:
        self._tell(entries.run_entry(plan, self._about, time.time()))

    def rescaled(self, plan: Plan) -> None:
        self._rescales += 1
        run = f"{self._about.run}/{self._rescales}"
        self._tell(entries.run_entry(plan, replace(self._about, run=run), time.time()))

    def progress(self, snapshot: RunStatus) -> None:
        before, self._snapshot = self._snapshot, snapshot
        now_s, at = time.monotonic(), time.time()
        for entry in self._failures.changed(snapshot.recoveries, now_s, at):
            self._tell(entry)
        changed = before is None or before.phase is not snapshot.phase
        if not self._measured and (changed or now_s >= self._sample_due_s):
            # Without workers that stay nobody measures: checkpoints say how far each shard is.
            self._sample_due_s = now_s + SAMPLE_EVERY_S
            self._sample(Measures(at, {}, {}, {}))

    def measured(self, measures: Measures) -> None:
        self._measured = True
        self._sample(measures)

    def note(self, text: str, warning: bool) -> None:
        self._tell(entries.note_entry(text, warning, time.time()))

    def epoch(self, manifest: EpochManifest) -> None:
        self._newest = manifest
        self._tell(entries.checkpoint_entry(manifest, time.time()))

    def given_up(self, number: int, reason: str) -> None:
        self._tell(entries.given_up_entry(number, reason, time.time()))

    def killing(self, kill: Kill) -> None:
        self._tell(entries.kill_entry(kill.operator, kill.shard, time.time()))

    def interval(self, every_s: float) -> None:
        self._tell(entries.interval_entry(every_s, time.time()))

    def ended(self, outcome: str, error: str | None) -> None:
        """The run is over, however that came."""
        if self._snapshot is not None:
            now_s, at = time.monotonic(), time.time()
            for entry in self._failures.changed(self._snapshot.recoveries, now_s, at):
                self._tell(entry)
        self._tell(entries.end_entry(outcome, error, time.time()))

    def _sample(self, measures: Measures) -> None:
        seen = self._snapshot
        if seen is None:
            return
        sample = entries.sample_entry(
            measures, seen.phase.value, seen.epoch, seen.records_read, seen.totals
        )
        if not self._measured and self._newest is not None:
            sample["shards"] = {
                str(record.shard): {
                    "counts": {name: list(pair) for name, pair in record.counts.items()}
                }
                for record in self._newest.records.values()
            }
        self._tell(sample)


@dataclass
class Recording:
    """A run that is recorded."""

    config: RunConfig
    outcome: str = "ended"
    """How it ended, once somebody has said so."""


@contextmanager
def recording(
    config: RunConfig, engine: EngineName, url: str, context: SparkContext
) -> Iterator["Recording"]:
    """The same run, told as entries to its listener and, if its store is kept, to the history there."""
    listener = config.listener
    troubles: SimpleQueue[str] = SimpleQueue()
    writer = None
    if config.store is not None and config.history:
        writer = HistoryWriter(blobs_at(url, config.store_key), troubles.put)

    trace = tracing()

    def tell(entry: Entry) -> None:
        if trace is not None:
            trace(entry)
        if writer is not None:
            writer.take(entry)
        listener.recorded(entry)
        try:
            text = troubles.get_nowait()
        except Empty:
            return
        listener.note(text, True)

    recorder = Recorder(about(config, engine, url, context.uiWebUrl), tell)
    if writer is not None:
        writer.start()
    run = Recording(replace(config, listener=Both(listener, recorder)))
    outcome, error = "failed", None
    try:
        yield run
        outcome = run.outcome
    except KeyboardInterrupt:
        outcome = "killed"
        raise
    except BaseException as raised:
        error = str(raised) or type(raised).__name__
        raise
    finally:
        recorder.ended(outcome, error)
        if writer is not None:
            writer.stop()


def about(config: RunConfig, engine: EngineName, store: str, spark_ui: str | None) -> About:
    """What a history says of how this run was asked for: nothing that could be secret."""
    checkpoint, policy = config.checkpoint, config.policy
    protocol = name_of(checkpoint)
    every_records = checkpoint.every_records if isinstance(checkpoint, Coordinated) else None
    said = {
        "engine": engine,
        "checkpoints": protocol,
        "interval": "" if checkpoint is None else _said(checkpoint.every),
        "every records": _said(every_records),
        "master": config.master if config.spark is None else "a session of the program's own",
        "workers": _said(config.workers),
        "max restarts": f"{policy.max_restarts} within {policy.restart_window_s:g} s",
        "checkpoint timeout": f"{policy.checkpoint_timeout_s:g} s",
        "heartbeat timeout": f"{config.heartbeat_timeout_s:g} s",
        "timeout": "" if config.timeout_s is None else f"{config.timeout_s:g} s",
        "kills": str(len(config.kills) or ""),
        "store is signed": "yes" if config.store_key is not None else "",
        "process": str(os.getpid()),
    }
    return About(
        run=uuid.uuid4().hex,
        store=store,
        engine=engine,
        protocol=protocol,
        interval_s=policy.every_s,
        logs=PROTOCOLS[protocol].logs,
        spark_ui=spark_ui,
        configuration={name: text for name, text in said.items() if text},
    )


def _said(value: object) -> str:
    return "" if value is None else str(value)
