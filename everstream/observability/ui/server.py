"""The routes of the server: the page, the view and its stream, metrics, state, actions."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from everstream.errors import EverstreamError, UserError
from everstream.extras import extra
from everstream.observability.history.schema import VIEW
from everstream.observability.ui import queries
from everstream.observability.ui.auth import Guard
from everstream.observability.ui.metrics import exposition
from everstream.observability.ui.views import ACTIONS, Shown

with extra("ui"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Receive, Scope, Send

Answer: TypeAlias = "Callable[[Request], Awaitable[Response]]"
PAGE = Path(__file__).parent / "page"
"""Files that are the same for every run: any client may have them."""
LARGEST_BODY = 10_000
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guarded:
    """Refuses requests that do not name this server, or that come from pages of other sites."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            why_not = self._guard.why_not(Request(scope).headers)
            if why_not is not None:
                await refusal(403, why_not)(scope, receive, send)
                return
        await self._app(scope, receive, _with_headers(send))


class BadRequest(UserError):
    """The request is malformed."""


class Routes:
    def __init__(self, shown: Shown, guard: Guard) -> None:
        self._shown = shown
        self._guard = guard
        self.ending = asyncio.Event()

    async def session(self, request: Request) -> Response:
        """A client that presents the token gets a cookie for reading."""
        answer = JSONResponse({"acts": self._guard.why_no_action(request.headers) is None})
        answer.set_cookie(self._guard.cookie, self._guard.session, httponly=True, samesite="strict")
        return answer

    def for_those_who_may(self, answer: Answer) -> Answer:
        """The same answer, for clients with the token or the cookie."""

        async def answered(request: Request) -> Response:
            why_not = self._guard.why_no_look(request.headers, request.cookies)
            return await answer(request) if why_not is None else refusal(401, why_not)

        return answered

    async def view(self, request: Request) -> Response:
        return JSONResponse(self._shown.view())

    async def stream(self, request: Request) -> Response:
        return StreamingResponse(events(self._shown, self.ending), media_type="text/event-stream")

    async def schema(self, request: Request) -> Response:
        return JSONResponse(VIEW)

    async def metrics(self, request: Request) -> Response:
        text, kind = await run_in_threadpool(self._shown.live.reading, exposition)
        return Response(text, media_type=kind)

    async def state(self, request: Request) -> Response:
        asked, key_file = request.query_params, self._shown.store_key
        operator, top = _named(asked, "operator"), _number(asked, "top", 100)
        return await self._looked_up(
            lambda store: queries.state(store, key_file, operator, top, asked.get("key"))
        )

    async def dead_letters(self, request: Request) -> Response:
        asked = request.query_params
        operator, top = _named(asked, "operator"), _number(asked, "top", 50)
        return await self._looked_up(lambda store: queries.dead_letters(store, operator, top))

    async def _looked_up(self, look: Callable[[str], dict[str, Any]]) -> Response:
        store = self._shown.store
        if store is None:
            return refusal(409, "the run has not started: its store is not known yet")
        try:
            return JSONResponse(await run_in_threadpool(look, store))
        except UserError as error:
            return refusal(404, error.message)
        except EverstreamError as error:
            return refusal(409, error.message)

    async def action(self, request: Request) -> Response:
        name = request.path_params["action"]
        if request.method != "POST":
            return refusal(405, "actions need POST")
        why_not = self._guard.why_no_action(request.headers)
        if why_not is not None:
            return refusal(401, why_not)
        if name not in ACTIONS:
            return refusal(
                404, f"there is no action '{name}'; available actions: {', '.join(ACTIONS)}"
            )
        if self._shown.actor is None:
            return refusal(409, "this page has no running command that could do that")
        try:
            wishes = await _wishes(request)
            done = await run_in_threadpool(self._shown.actor.act, name, wishes)
        except UserError as error:
            return refusal(400, error.message)
        except EverstreamError as error:
            return refusal(409, error.message)
        except TimeoutError as error:
            return JSONResponse({"done": False, "text": str(error)}, 202)
        return JSONResponse({"done": True, "text": done})


def make_app(shown: Shown, guard: Guard) -> Starlette:
    routes = Routes(shown, guard)
    looks = {
        "/api/view": routes.view,
        "/api/stream": routes.stream,
        "/api/schema": routes.schema,
        "/api/state": routes.state,
        "/api/dead_letters": routes.dead_letters,
        "/metrics": routes.metrics,
    }
    may = routes.for_those_who_may
    app = Starlette(
        routes=[
            *(Route(path, may(answer)) for path, answer in looks.items()),
            Route("/api/session", may(routes.session), methods=["POST"]),
            Route("/api/actions/{action}", routes.action, methods=["GET", "POST"]),
            Mount("/", StaticFiles(directory=PAGE, html=True, check_dir=False)),
        ]
    )
    app.add_exception_handler(BadRequest, _not_understood)
    app.add_middleware(partial(Guarded, guard=guard))
    app.state.ending = routes.ending
    return app


def _not_understood(request: Request, error: Exception) -> Response:
    return refusal(400, str(error))


def refusal(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers=HEADERS)


def _named(asked: QueryParams, name: str) -> str:
    if not asked.get(name):
        raise BadRequest(f"name one, as in ?{name}=count.")
    return asked[name]


def _number(asked: QueryParams, name: str, otherwise: int) -> int:
    text = asked.get(name, str(otherwise))
    if not re.fullmatch("[0-9]{1,9}", text) or not int(text):
        raise BadRequest(f"{name}={text[:20]}: give a whole number, such as {otherwise}.")
    return min(int(text), queries.MOST_ROWS)


async def _wishes(request: Request) -> dict[str, Any]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BODY:
            raise UserError(f"the body must not be larger than {LARGEST_BODY} bytes.")
    if not body:
        return {}
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("the body must be a JSON object.") from None
    if not isinstance(parsed, dict):
        raise UserError("the body must be a JSON object.")
    return parsed


def _with_headers(send: Send) -> Callable[[Any], Awaitable[None]]:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            more = [(n.lower().encode(), v.encode()) for n, v in HEADERS.items()]
            message["headers"] = [
                *message.get("headers", ()),
                *((name, value) for name, value in more if name not in present),
            ]
        await send(message)

    return sending


EVERY_S = 0.5
LOOK_EVERY_S = 0.05
ALIVE_EVERY_S = 10.0


async def events(shown: Shown, ending: asyncio.Event) -> AsyncIterator[bytes]:
    """Until the client has disconnected, or the server ends."""
    view = shown.view()
    seen = shown.live.event_counts
    yield encoded("view", view)
    sent_s = time.monotonic()
    while not ending.is_set():
        await asyncio.sleep(LOOK_EVERY_S)
        counts, now_s = shown.live.event_counts, time.monotonic()
        urgent, changed = counts[1] != seen[1], counts != seen
        due = now_s - sent_s >= (EVERY_S if changed else ALIVE_EVERY_S)
        if not urgent and not due:
            continue
        seen, sent_s = counts, now_s
        newer = shown.view()
        yield encoded("patch", patch(view, newer))
        view = newer


def patch(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What to change in `before` to get `after`."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def encoded(event: str, data: dict[str, Any]) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
