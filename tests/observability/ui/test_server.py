"""The server: what it shows to whom, what it does for whom, and what it refuses."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from everstream.errors import RunFailed, UserError
from everstream.events import DriverLost
from everstream.observability.history.run_view import Live
from everstream.observability.ui.auth import TOKEN_FILE, Guard, is_loopback, new_token
from everstream.observability.ui.server import events, make_app, patch
from everstream.observability.ui.serving import Serving, address_of
from everstream.observability.ui.views import ACTIONS, Shown
from tests.observability.history.telling import START, checkpoint, run, sample

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


def client(acting: Acting | None = None, acts: bool = True) -> TestClient:
    app = make_app(Shown(live(), acting), Guard(TOKEN, ["pages.example"], acts=acts))
    return TestClient(app, base_url="http://127.0.0.1:4120", raise_server_exceptions=False)


def test_a_view_is_shown_to_whoever_knows_the_token() -> None:
    view = client().get("/api/view", headers=KNOWS)
    assert view.json()["pipeline"] == "told" and view.json()["actions"] is False
    assert view.headers["cache-control"] == "no-store"
    assert client(Acting()).get("/api/view", headers=KNOWS).json()["actions"] is True
    assert client().get("/api/schema", headers=KNOWS).json()["title"] == "The view of a run"


LOOKS = [
    *("/api/view", "/api/stream", "/api/schema", "/metrics", "/api/state?operator=count"),
    "/api/dead_letters?operator=count",
]


@pytest.mark.parametrize("path", LOOKS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"everstream={TOKEN}"},
        {"cookie": "everstream="},
        {"cookie": "other=1"},
    ],
)
def test_nothing_of_a_run_is_shown_to_others(path: str, headers: dict[str, str]) -> None:
    answer = client().get(path, headers=headers)
    assert answer.status_code == 401 and "told" not in answer.text
    assert client().get(f"{path.partition('?')[0]}?token={TOKEN}").status_code == 401


def test_who_shows_the_token_once_is_given_a_cookie_to_look_but_not_to_act() -> None:
    acting = Acting()
    browser = client(acting)
    assert browser.post("/api/session").status_code == 401
    answer = browser.post("/api/session", headers=KNOWS)
    assert answer.json() == {"acts": True}
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and TOKEN not in cookie
    assert browser.get("/api/view").json()["pipeline"] == "told"
    assert browser.get("/metrics").status_code == 200
    assert browser.post("/api/session").json() == {"acts": False}
    assert browser.post("/api/actions/stop").status_code == 401 and not acting.told
    elsewhere = browser.get("/api/view", headers={"origin": "http://evil.example"})
    assert elsewhere.status_code == 403


def test_a_cookie_is_good_for_the_server_that_gave_it() -> None:
    other = Guard("another-token-entirely")
    assert other.session != Guard(TOKEN).session
    assert client().get("/api/view", cookies={"everstream": other.session}).status_code == 401


def test_the_page_itself_has_nothing_of_a_run_and_is_shown_to_everybody() -> None:
    assert client().get("/").status_code == 200
    assert "told" not in client().get("/").text


@pytest.mark.parametrize(
    "way", ["/../server.py", "/%2e%2e/server.py", "//etc/passwd", "/..%2fguard.py"]
)
def test_only_files_of_the_page_are_given_away(way: str) -> None:
    assert client().get(way).status_code in (404, 405)


def test_a_token_can_come_from_a_file_that_is_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv(TOKEN_FILE, str(file))
    with pytest.raises(UserError, match="cannot be read"):
        new_token()
    file.write_text("0123456789abcdef0123456789abcdef\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        new_token()
    file.chmod(0o600)
    assert new_token() == "0123456789abcdef0123456789abcdef"
    for wrong in ("short", "two words that are long enough", "ü" * 30):
        file.write_text(wrong)
        with pytest.raises(UserError, match="one word of at least"):
            new_token()


NUMBERS = ["²", "٣", "-1", "0", "1.5", "1e3", "", " ", "9" * 5000, "1_000", "\x00", "½", "+1"]


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("path", ["/api/state", "/api/dead_letters"])
def test_what_is_no_number_is_answered_with_400(path: str, text: str) -> None:
    asked = {"operator": "count", "top": text}
    answer = client().get(path, params=asked, headers=KNOWS)
    assert answer.status_code == 400 and len(answer.text) < 200


def at_a_store(tmp_path: Path) -> TestClient:
    app = make_app(Shown(live(), store=str(tmp_path)), Guard(TOKEN))
    return TestClient(
        app, base_url="http://127.0.0.1:4120", headers=KNOWS, raise_server_exceptions=False
    )


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["/api/state", "/api/dead_letters"]),
    st.dictionaries(st.sampled_from(["operator", "top", "key", "more"]), st.text(max_size=40)),
)
def test_no_question_makes_the_server_fail(
    tmp_path: Path, path: str, asked: dict[str, str]
) -> None:
    answer = at_a_store(tmp_path).get(path, params=asked)
    assert answer.status_code in (200, 400, 404, 409), (asked, answer.text)
    assert answer.headers["content-type"] == "application/json"


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(ACTIONS), st.binary(max_size=200) | st.text('[]{}":,0truefalse', max_size=60)
)
def test_no_wish_makes_the_server_fail(action: str, body: bytes | str) -> None:
    answer = client(Acting()).post(f"/api/actions/{action}", content=body, headers=KNOWS)
    assert answer.status_code in (200, 400)


def test_a_wish_that_is_nested_deeply_is_refused() -> None:
    answer = client(Acting()).post("/api/actions/stop", content=b"[" * 9_000, headers=KNOWS)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4120", "localhost:4120", "[::1]:4120", "pages.example"]
)
def test_names_that_are_ours_are_answered(host: str) -> None:
    assert client().get("/api/view", headers={"host": host, **KNOWS}).status_code == 200


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
    assert client(acting, acts=False).post("/api/actions/stop", headers=KNOWS).status_code == 401
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
            shown.live.take(DriverLost("SIGKILL", at=START))
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
        bearer = {"Authorization": f"Bearer {serving.token}"}
        asking = urllib.request.Request(f"{serving.url}api/view", headers=bearer)
        with urllib.request.urlopen(asking) as answer:
            assert json.load(answer)["pipeline"] == "told"
        with pytest.raises(HTTPError, match="401"):
            urllib.request.urlopen(f"{serving.url}api/view")
        with Serving(Shown(live()), "127.0.0.1:0") as other:
            assert other.token != serving.token
    with pytest.raises(URLError):
        urllib.request.urlopen(asking)


def test_whoever_lets_others_reach_the_page_is_warned() -> None:
    serving = Serving(Shown(live(), Acting()), "0.0.0.0:0")
    serving.close()
    assert serving.warning is not None and "learns the token" in serving.warning
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
