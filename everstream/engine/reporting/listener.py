"""Listeners for the events of a run, the fan-out to several of them, and Python's `logging`."""

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from everstream.errors import UserError
from everstream.events import MetricsSampled, Progressed, RunEvent, is_warning, sentence
from everstream.hiding import hidden

LONGEST = 4_000
"""Maximum characters of a text."""
CUT = "..."
LOGGER = "everstream"
FIELDS = ("pipeline", "operator", "shard", "worker")

logging.getLogger(LOGGER).addHandler(logging.NullHandler())  # prints nothing by default


class Listener:
    """Receives every event of a run. Called on the driver's thread: return quickly.

    >>> class Warnings(es.Listener):
    ...     def on_event(self, event):
    ...         if es.events.is_warning(event):
    ...             print(es.events.sentence(event))
    >>> result = es.Pipeline("heard").source(es.Range(3)).collect().run(listener=Warnings())
    """

    def on_event(self, event: RunEvent) -> None:
        """An event of the run; `everstream.events` lists them all."""


AnyListener: TypeAlias = Listener | Callable[[RunEvent], None]
"""The type of `listener=`."""


class _Calling(Listener):
    def __init__(self, function: Callable[[RunEvent], None]) -> None:
        self._function = function

    def on_event(self, event: RunEvent) -> None:
        self._function(event)


def listening(given: AnyListener | None) -> Listener:
    """The listener a user passed: an object with `on_event`, or a function."""
    if given is None:
        return Listener()
    if isinstance(given, Listener):
        return given
    on_event = getattr(given, "on_event", given)
    if not callable(on_event) or isinstance(given, type):
        raise UserError(
            f"listener={given!r}: pass a function that takes an event, or an es.Listener."
        )
    return _Calling(on_event)


class Listeners(Listener):
    """Sends events to several listeners, with a timestamp and without passwords."""

    def __init__(self, *listeners: Listener, clock: Callable[[], float] = time.time) -> None:
        self._listeners = listeners
        self._clock = clock

    def on_event(self, event: RunEvent) -> None:
        event = sent(event, self._clock)
        for listener in self._listeners:
            listener.on_event(event)


def sent(event: RunEvent, clock: Callable[[], float] = time.time) -> RunEvent:
    """The event as all listeners get it: with a timestamp and without passwords."""
    if not event.at:
        event = replace(event, at=clock())
    if isinstance(event, Progressed | MetricsSampled):
        return event
    texts = {name: text for name, text in vars(event).items() if isinstance(text, str)}
    changed: dict[str, Any] = {
        name: clean for name, text in texts.items() if (clean := _clean(text)) != text
    }
    return replace(event, **changed) if changed else event


def _clean(text: str) -> str:
    clean = hidden(text)  # first: a truncated password is no longer recognized
    return clean if len(clean) <= LONGEST + len(CUT) else f"{clean[:LONGEST]}{CUT}"


class Logging(Listener):
    """Logs the sentences of a run through Python's `logging`, with the pipeline's name."""

    def __init__(self, pipeline: str) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._extra = {"pipeline": pipeline, "operator": None, "shard": None, "worker": None}

    def on_event(self, event: RunEvent) -> None:
        text = sentence(event)
        if text is not None:
            level = logging.WARNING if is_warning(event) else logging.INFO
            self._logger.log(level, "%s", text, extra=self._extra)


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
            **{field: getattr(record, field, None) for field in FIELDS},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as_json() -> None:
    """Print all further log records of this process as lines of JSON on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for noisy in ("py4j", "asyncio", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
