"""A listener for tests of changing plans."""

import threading
from typing import Any

import everstream as es
from everstream.events import Note, PlanChanged, Progressed


class Heard(es.Listener):
    """Keeps what is reported, and lets others wait for records."""

    def __init__(self) -> None:
        self.events: list[es.RunEvent] = []
        self.plans: list[dict[str, int]] = []
        self._read = threading.Condition()
        self.records = 0
        self.result: Any = None

    def on_event(self, event: es.RunEvent) -> None:
        match event:
            case PlanChanged(operators=operators):
                self.plans.append({operator.chain: operator.shards for operator in operators})
            case Progressed(status=status):
                with self._read:
                    self.records = status.records_read
                    self._read.notify_all()
            case _:
                self.events.append(event)

    def noted(self, text: str) -> bool:
        return any(isinstance(event, Note) and text in event.text for event in self.events)

    def wait_for(self, records: int) -> None:
        with self._read:
            assert self._read.wait_for(lambda: self.records >= records, timeout=120)
