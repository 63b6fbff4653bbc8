"""The server: what it shows to whom, what it does for whom, and what it refuses."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from everstream.errors import RunFailed, UserError
from everstream.history import entries
from everstream.history.live import Live
from everstream.ui.guard import Guard, is_loopback
from everstream.ui.server import make_app
from everstream.ui.serving import Serving, address_of
from everstream.ui.showing import Shown
from everstream.ui.stream import events, patch
from tests.history.telling import START, checkpoint, run, sample

TOKEN = "the-token-that-was-printed"
KNOWS = {"authorization": f"Bearer {TOKEN}"}


class Acting:
    """Keeps what it is told to do."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._error = error

    def act(self, action: str, wishes: Mapping[str, Any]) -> str:
        if self._error is not None:
            raise self._error
        self.told.append((action, dict(wishes)))
        return f"{action} was done"


def live() -> Live:
    found = Live(lambda: START + 2)
    for entry in (run(), sample(0, 0, 0), sample(1, 100, 80, latency_s=0.01), checkpoint(1, 1)):
        found.take(entry)
    return found


def client(acting: Acting | None = None, token: str | None = TOKEN) -> TestClient:
    app = make_app(Shown(live(), acting), Guard(token, ["pages.example"]))
    return TestClient(app, base_url="http://127.0.0.1:4120")


def test_a_view_is_shown_to_whoever_asks_by_our_name() -> None:
    view = client().get("/api/view")
    assert view.json()["pipeline"] == "told" and view.json()["actions"] is False
    assert view.headers["cache-control"] == "no-store"
    assert client(Acting()).get("/api/view").json()["actions"] is True
    assert client().get("/api/schema").json()["title"] == "The view of a run"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4120", "localhost:4120", "[::1]:4120", "pages.example"]
)
def test_names_that_are_ours_are_answered(host: str) -> None:
    assert client().get("/api/view", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/api/view", "/api/stream", "/metrics", "/", "/api/actions/stop"])
@pytest.mark.parametrize("host", ["rebound.example:4120", "127.0.0.1.rebound.example", "", "[oops"])
def test_a_name_that_points_here_by_somebody_elses_doing_is_refused(path: str, host: str) -> None:
    acting = Acting()
    for method in ("GET", "POST"):
        answer = client(acting).request(method, path, headers={"host": host, **KNOWS})
        assert answer.status_code in (400, 403) and "pipeline" not in answer.text
    assert not acting.told


def test_actions_are_done_for_those_who_know_the_token() -> None:
    acting = Acting()
    answer = client(acting).post("/api/actions/kill", json={"host": 1}, headers=KNOWS)
    assert answer.json() == {"done": True, "text": "kill was done"}
    own = {"origin": "http://127.0.0.1:4120", **KNOWS}
    assert client(acting).post("/api/actions/checkpoint", headers=own).status_code == 200
    assert acting.told == [("kill", {"host": 1}), ("checkpoint", {})]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Bearer {TOKEN}x"}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": "Bearer tökén".encode()}, 401),
        ({"cookie": f"token={TOKEN}"}, 401),
        ({**KNOWS, "origin": "http://evil.example"}, 403),
        ({**KNOWS, "origin": "http://127.0.0.1:9999"}, 403),
        ({**KNOWS, "origin": "null"}, 403),
    ],
)
def test_actions_are_refused_to_all_others(headers: dict[str, str | bytes], status: int) -> None:
    acting = Acting()
    answer = client(acting).post("/api/actions/stop", headers=headers)
    assert answer.status_code == status and answer.json()["error"]
    assert not acting.told


def test_an_action_is_never_done_by_get_nor_without_somebody_to_do_it() -> None:
    acting = Acting()
    asked = client(acting).get(f"/api/actions/stop?token={TOKEN}", headers=KNOWS)
    assert asked.status_code == 405 and not acting.told
    assert client(acting).post("/api/actions/dance", headers=KNOWS).status_code == 404
    assert client(None).post("/api/actions/stop", headers=KNOWS).status_code == 409
    assert client(acting, token=None).post("/api/actions/stop", headers=KNOWS).status_code == 401
    too_much = client(acting).post("/api/actions/stop", content=b" " * 20_000, headers=KNOWS)
    assert too_much.status_code == 400 and not acting.told
    no_object = client(acting).post("/api/actions/stop", content=b"[1]", headers=KNOWS)
    assert no_object.status_code == 400 and not acting.told


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UserError("no host 7"), 400),
        (RunFailed("the driver ended"), 409),
        (TimeoutError("still on its way"), 202),
    ],
)
def test_what_cannot_be_done_is_said(error: Exception, status: int) -> None:
    answer = client(Acting(error)).post("/api/actions/kill", headers=KNOWS)
    assert answer.status_code == status
    assert str(error) in answer.text


def test_a_stream_gives_the_view_and_then_what_changes() -> None:
    shown = Shown(live())

    async def listening() -> list[tuple[str, dict[str, Any]]]:
        heard = []
        stream = events(shown, asyncio.Event())
        async for event in stream:
            name, data, *_ = event.decode().split("\n")
            heard.append((name, json.loads(data.removeprefix("data: "))))
            if len(heard) == 2:
                break
            shown.live.take(entries.driver_lost_entry("SIGKILL", START))
        return heard

    (first, view), (second, changed) = asyncio.run(listening())
    assert (first, second) == ("event: view", "event: patch")
    assert changed["drivers_lost"] == 1 and "configuration" not in changed
    assert {**view, **changed} == shown.view()
    assert patch(view, view) == {}


def test_a_stream_ends_with_its_server() -> None:
    ending = asyncio.Event()

    async def listening() -> int:
        count = 0
        async for _ in events(Shown(live()), ending):
            count += 1
            ending.set()
        return count

    assert asyncio.run(listening()) == 1


def test_a_real_server_listens_on_loopback_and_prints_a_link_with_the_token() -> None:
    with Serving(Shown(live(), Acting()), "127.0.0.1:0") as serving:
        assert serving.warning is None and serving.token is not None
        assert serving.link == f"{serving.url}#token={serving.token}"
        with urllib.request.urlopen(f"{serving.url}api/view") as answer:
            assert json.load(answer)["pipeline"] == "told"
        with Serving(Shown(live()), "127.0.0.1:0") as other:
            assert other.token is None, "nobody is there who could act"
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{serving.url}api/view")


def test_whoever_lets_others_reach_the_page_is_warned() -> None:
    serving = Serving(Shown(live(), Acting()), "0.0.0.0:0")
    serving.close()
    assert serving.warning is not None and "can be read by everybody" in serving.warning
    assert is_loopback("127.0.0.9") and is_loopback("::1") and not is_loopback("10.0.0.1")


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (None, ("127.0.0.1", None)),
        ("127.0.0.1", ("127.0.0.1", None)),
        (":80", ("127.0.0.1", 80)),
        ("81", ("127.0.0.1", 81)),
        ("example:82", ("example", 82)),
        ("[::1]:83", ("::1", 83)),
    ],
)
def test_an_address_may_be_half_of_one(said: str | None, means: tuple[str, int | None]) -> None:
    assert address_of(said) == means


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match="write HOST:PORT"):
        address_of("here:there")
