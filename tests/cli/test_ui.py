"""`everstream run --ui` and `everstream ui`: a page that outlives drivers, does what it is told, and
still knows the story when the command is long over."""

import json
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.cli.optional import completed
from tests.cli.commands import Command
from tests.gated import open_gate, prepare

pytestmark = pytest.mark.timeout(600)


class Page:
    """The page of a command, as its link has it."""

    def __init__(self, command: Command) -> None:
        self.command = command
        command.wait_for("link", lambda: command.says("page: http://"))
        (line,) = [line for line in command.lines if line.startswith("page: ")]
        self.url, _, self.token = line.removeprefix("page: ").partition("#token=")

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read("api/view"))
        return found

    def read(self, path: str) -> str:
        bearer = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=bearer)
        with urllib.request.urlopen(request, timeout=300) as answer:
            text: str = answer.read().decode()
        return text

    def until(self, what: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [self.view()]
            return bool(holds(found[0]))

        self.command.wait_for(what, look)
        return found[0]

    def act(self, action: str, token: str | None = None, **wishes: Any) -> tuple[int, str]:
        given = {"Authorization": f"Bearer {self.token if token is None else token}"}
        body = json.dumps(wishes).encode()
        request = urllib.request.Request(f"{self.url}api/actions/{action}", body, given)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()


@dataclass
class Seen:
    refused: tuple[int, str]
    checkpoint: tuple[int, str]
    interval: tuple[int, str]
    killed: dict[str, Any]
    gone: dict[str, Any]
    back: dict[str, Any]
    code: int
    output: str
    later: dict[str, Any]
    metrics: str
    acted_later: tuple[int, str]
    later_code: int


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("seen")
    prepare(folder, 10_000)
    same = ("run", "steady.py", "--every", "10m", "--master", "local[2]", "--store", "store")
    command = Command(*same, "--ui", "127.0.0.1:0", cwd=folder)
    page = Page(command)
    page.until("records", lambda view: view["series"]["at"] and view["phase"] == "running")
    refused = page.act("stop", token="not-the-token")
    checkpoint = page.act("checkpoint")
    interval = page.act("interval", every="200ms")
    page.until("checkpoints", lambda view: view["epoch"] > 2)
    assert page.act("kill", worker=0)[0] == 200
    killed = page.until(
        "recovery",
        lambda view: view["failures"] and view["failures"][0]["caught_up_ms"] is not None,
    )
    command.driver().kill()
    gone = page.until("death of the driver", lambda view: view["drivers_lost"])
    open_gate(folder, 20_000)
    back = page.until(
        "next driver",
        lambda view: view["failures"][0]["caught_up_ms"] is not None and view["phase"] == "running",
    )
    assert page.act("stop")[0] == 200
    code = command.end()
    with pytest.raises(URLError):
        page.view()

    looking = Command("ui", "store", "--port", "0", cwd=folder)
    shown = Page(looking)
    later = shown.view()
    metrics = shown.read("metrics")
    with pytest.raises(HTTPError, match="401"):
        urllib.request.urlopen(f"{shown.url}metrics")
    acted_later = shown.act("stop")
    looking.process.send_signal(signal.SIGINT)
    yield Seen(
        *(refused, checkpoint, interval, killed, gone, back, code, command.output),
        *(later, metrics, acted_later, looking.end()),
    )


def test_the_page_does_what_it_is_told_by_those_who_know_the_token(seen: Seen) -> None:
    assert seen.refused[0] == 401 and "need the token" in seen.refused[1]
    assert seen.checkpoint[0] == 200 and "epoch 1 is stable" in seen.checkpoint[1]
    assert seen.interval[0] == 200
    (failure,) = seen.killed["failures"]
    assert failure["injected"] and "worker 0" in failure["what"]
    assert seen.code == 0 and "stopped" in seen.output


def test_the_page_lives_through_the_death_of_a_driver_and_tells_it(seen: Seen) -> None:
    assert seen.gone["phase"] in ("the driver is gone", "waiting for workers")
    assert not any(worker["alive"] for worker in seen.gone["workers"])
    assert seen.gone["failures"][0]["what"] == "driver (killed by SIGKILL)"
    assert seen.back["drivers_lost"] == 1
    assert seen.back["failures"][0]["restored_ms"] > 0
    assert seen.back["interval_s"] == 0.2, "the next driver has the interval that was set"


def test_a_store_shows_its_runs_when_they_are_over_and_nothing_can_be_asked_of_it(
    seen: Seen,
) -> None:
    assert seen.later["pipeline"] == "steady"
    assert seen.later["ended"]["outcome"] == "stopped"
    assert [failure["what"] for failure in seen.later["failures"]] == [
        "driver (killed by SIGKILL)",
        "worker 0 (killed on purpose)",
    ]
    assert seen.later["drivers_lost"] == 1
    assert len(seen.later["checkpoints"]) >= 3 and seen.later["actions"] is False
    assert re.search(r"everstream_num_records_in_total\{[^}]*worker=", seen.metrics)
    assert seen.acted_later[0] == 401
    assert seen.later_code == 0


def test_ui_may_stand_alone_or_with_an_address() -> None:
    assert completed(["a.py", "--ui"]) == ["a.py", "--ui=yes"]
    assert completed(["--ui", "a.py", "--", "--ui"]) == ["--ui=yes", "a.py", "--", "--ui"]
    assert completed(["--ui", "--fresh"]) == ["--ui=yes", "--fresh"]
    for address in ("0.0.0.0:80", ":80", "80", "[::1]:80"):
        assert completed(["--ui", address]) == ["--ui", address]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["run", "x.py", "--ui=here:there"], "write HOST:PORT"),
        (["ui", "nowhere"], "there is no store 'nowhere'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(command: list[str], says: str) -> None:
    said = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert said.exit_code == 2 and says in said.output
