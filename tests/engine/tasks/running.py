"""Runs small pipelines on local Spark, and keeps what is said meanwhile."""

from typing import Any

import everstream as es
from everstream.engine.reporting.listener import Listener
from tests.spark import MASTER


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str, warning: bool) -> None:
        self.texts.append(text)


def run(pipeline: es.Pipeline, **options: Any) -> Any:
    return pipeline.run(**{"master": MASTER, **options})
