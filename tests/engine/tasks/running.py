"""Runs small pipelines on local Spark, and keeps the events of a run that have a sentence."""

from typing import Any, TypeVar

import everstream as es
from everstream.engine.reporting.listener import Listener
from everstream.events import RunEvent, sentence
from tests.spark import MASTER

T = TypeVar("T")


class Notes(Listener):
    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def on_event(self, event: RunEvent) -> None:
        if sentence(event) is not None:
            self.events.append(event)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def texts(self) -> list[str]:
        return [text for event in self.events if (text := sentence(event)) is not None]


def run(pipeline: es.Pipeline, **options: Any) -> Any:
    return pipeline.run(**{"master": MASTER, **options})
