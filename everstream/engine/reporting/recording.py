"""Records the history and the traces of a run, and serves the page of a run in this process."""

import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from everstream.core.registry import PROTOCOLS, name_of
from everstream.engine.handle import RunHandle
from everstream.engine.reporting.building import About, RecoveryUpdates
from everstream.engine.reporting.listener import Listener, sent
from everstream.engine.settings.options import RunConfig
from everstream.events import Note, Progressed, RunEnded, RunEvent, RunStatus
from everstream.observability.history.tracing import tracing
from everstream.observability.history.writer import HistoryWriter
from everstream.pipeline.checkpointing import EngineName
from everstream.state.signing import blobs_at


@dataclass
class Recorder(Listener):
    """Sends the events of one run to its listener, its history and its traces.

    It adds derived events: the progress of recoveries, and failures to write the history.
    """

    run: str
    listener: Listener
    writer: HistoryWriter | None
    troubles: "SimpleQueue[str]"
    """Messages of the writer."""

    def __post_init__(self) -> None:
        self._trace = tracing()
        self._recoveries = RecoveryUpdates(self.run)
        self._status: RunStatus | None = None

    def on_event(self, event: RunEvent) -> None:
        event = sent(event)
        self._send(event)
        if isinstance(event, Progressed):
            self._status = event.status
            self._follow_recoveries()
        try:
            text = self.troubles.get_nowait()
        except Empty:
            return
        self._send(sent(Note("history", text, True)))

    def ended(self, outcome: str, error: str | None) -> None:
        self._follow_recoveries()
        self._send(sent(RunEnded(outcome, error)))

    def _follow_recoveries(self) -> None:
        if self._status is not None:
            reports, now_s, at = self._status.recoveries, time.monotonic(), time.time()
            for event in self._recoveries.changed(reports, now_s, at):
                self._send(event)

    def _send(self, event: RunEvent) -> None:
        if self._trace is not None:
            self._trace(event)
        if self.writer is not None:
            self.writer.take(event)
        self.listener.on_event(event)


@dataclass
class Recording:
    config: RunConfig
    about: About
    outcome: str = "ended"
    """How it ended, once that is known."""


@contextmanager
def recording(
    config: RunConfig, engine: EngineName, url: str, spark_page: str | None
) -> Iterator["Recording"]:
    """The same run; its events also go to its traces and, with a permanent store, to its history."""
    described = about(config, engine, url, spark_page)
    troubles: SimpleQueue[str] = SimpleQueue()
    writer = None
    if config.store is not None and config.history:
        writer = HistoryWriter(blobs_at(url, config.store_key), troubles.put)
        writer.start()
    recorder = Recorder(described.run, config.listener, writer, troubles)
    run = Recording(replace(config, listener=recorder), described)
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
    """The options of this run for its history: nothing that could be secret."""
    checkpoint, policy = config.checkpoint, config.policy
    protocol = name_of(checkpoint)
    every_records = checkpoint.every_records if checkpoint is not None else None
    options = {
        "engine": engine,
        "checkpoints": protocol,
        "interval": "" if checkpoint is None else _text(checkpoint.every),
        "every records": _text(every_records),
        "master": config.master if config.spark is None else "a session of the program's own",
        "workers": _text(config.workers),
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
        configuration={name: text for name, text in options.items() if text},
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)


@contextmanager
def served(handle: RunHandle, ui: bool | str, store: str, key_file: str | None) -> Iterator[None]:
    """Serve the page while the run is active, if requested."""
    if ui is False:
        yield
        return
    from everstream.observability.ui.serving import Serving
    from everstream.observability.ui.views import Actions, Shown

    shown = Shown(handle.live, Actions(handle), store)
    shown.store_key = key_file
    with Serving(shown, None if ui is True else ui) as serving:
        handle.page = serving.link
        # Not a note: notes are stored, and the link contains the token.
        print(f"everstream: '{handle.name}': page: {serving.link}", file=sys.stderr)
        if serving.warning is not None:
            print(f"everstream: '{handle.name}': {serving.warning}", file=sys.stderr)
        try:
            yield
        finally:
            handle.page = None
