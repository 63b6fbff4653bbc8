"""Every tutorial can be followed from its first line to its last, and shows what it says it shows."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.connectors.kafka_topics import make_topic
from tests.docs.following import ROOT, Following, blocks_of, drivers_in_this_process
from tests.kafka_server import KafkaServer

__all__ = ["drivers_in_this_process"]
TUTORIALS = sorted(
    str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "tutorials").glob("[!i]*.md")
)
NEEDS_MORE = {"docs/tutorials/kafka-to-lake.md", "docs/tutorials/survive-a-failure.md"}
"""Followed by tests of their own: with a broker, and with a driver that is killed."""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the modules that a reader saves can be imported, also by Spark's Python."""
    modules = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("drivers_in_this_process")
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page not in NEEDS_MORE])
def test_a_tutorial_can_be_followed(page: str) -> None:
    Following(page).to_the_end()


def _newest(folder: str) -> int:
    """When the newest file of an output was written, which a run may be deleting."""
    times = [0]
    for part in Path(folder).glob("*.jsonl"):
        with suppress(FileNotFoundError):
            times.append(part.stat().st_mtime_ns)
    return max(times)


class WithTwoTerminals(Following):
    """Starts what runs until its driver is killed in a process, and kills that driver by its id."""

    terminal: Command
    pid: int

    def command(self, command: str, code: int = 0) -> str:
        words = shlex.split(command)
        if "--fresh" in words:
            assert words[0] == "everstream"
            before = _newest("balances")
            self.terminal = Command(*words[1:], cwd=Path.cwd())
            self.terminal.wait_for("output", lambda: _newest("balances") > before)
            return ""
        if command == "kill -9 PID":
            assert self.pid == self.terminal.driver().pid
            os.kill(self.pid, signal.SIGKILL)
            assert self.terminal.end() == 0, self.terminal.output
            self.terminal.wait_until_all_gone()
            return self.terminal.output
        printed = super().command(command, code)
        if words[:2] == ["everstream", "checkpoints"]:
            found = re.search(r"pid (\d+)", printed)
            assert found is not None, printed
            self.pid = int(found[1])
        return printed


@pytest.mark.usefixtures("drivers_in_this_process")
def test_killing_a_worker_and_the_driver_as_the_tutorial_says_changes_nothing() -> None:
    WithTwoTerminals("docs/tutorials/survive-a-failure.md").to_the_end()


class WithBroker(Following):
    """Makes topics without Kafka's own scripts."""

    broker: KafkaServer

    def command(self, command: str, code: int = 0) -> str:
        words = shlex.split(command)
        if words[0] != "kafka-topics.sh":
            return super().command(command, code)
        given = dict(pairwise(words))
        make_topic(self.broker, given["--topic"], int(given["--partitions"]))
        return ""


@pytest.mark.usefixtures("drivers_in_this_process")
def test_records_go_from_kafka_to_a_table_and_back_as_the_tutorial_says(kafka: KafkaServer) -> None:
    own = {'"orders"': '"tutorial-orders"', "topic orders": "topic tutorial-orders"}
    own |= {'"totals"': '"tutorial-totals"', "topic totals": "topic tutorial-totals"}
    page = "docs/tutorials/kafka-to-lake.md"
    reader = WithBroker(page, {"localhost:9092": kafka.bootstrap, **own})
    reader.broker = kafka
    reader.to_the_end()


def test_every_tutorial_is_followed_and_listed_in_their_index() -> None:
    assert set(TUTORIALS) >= NEEDS_MORE and len(TUTORIALS) == 8
    index = (ROOT / "docs" / "tutorials" / "index.md").read_text()
    for page in TUTORIALS:
        assert f"]({Path(page).name})" in index, page
        assert {"python", "text"} <= {block.language for block in blocks_of(page)}, page
