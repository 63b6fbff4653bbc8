"""The routes of the server: the page, the view and its stream, metrics, state, actions."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from everstream.errors import EverstreamError, UserError
from everstream.extras import extra
from everstream.history.schema import VIEW
from everstream.ui import looking
from everstream.ui.guard import Guard
from everstream.ui.metrics import exposition
from everstream.ui.showing import ACTIONS, Shown
from everstream.ui.stream import events

with extra("ui"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Receive, Scope, Send

PAGE = Path(__file__).parent / "page"
LARGEST_BODY = 10_000
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guarded:
    """Refuses requests that do not name this server, or that pages of other sites send."""

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


class Routes:
    """What is answered to what."""

    def __init__(self, shown: Shown, guard: Guard) -> None:
        self._shown = shown
        self._guard = guard
        self.ending = asyncio.Event()

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
        asked = request.query_params
        return await self._looked_up(
            lambda store: looking.state(
                store,
                self._shown.store_key,
                _named(asked, "operator"),
                _number(asked, "top", 100),
                asked.get("key"),
            )
        )

    async def dead_letters(self, request: Request) -> Response:
        asked = request.query_params
        return await self._looked_up(
            lambda store: looking.dead_letters(
                store, _named(asked, "operator"), _number(asked, "top", 50)
            )
        )

    async def _looked_up(self, look: Callable[[str], dict[str, Any]]) -> Response:
        store = self._shown.store
        if store is None:
            return refusal(409, "the run has not begun: its store is not known yet")
        try:
            return JSONResponse(await run_in_threadpool(look, store))
        except UserError as error:
            return refusal(404, error.message)
        except EverstreamError as error:
            return refusal(409, error.message)

    async def action(self, request: Request) -> Response:
        name = request.path_params["action"]
        if request.method != "POST":
            return refusal(405, "what changes something is asked for with POST")
        why_not = self._guard.why_no_action(request.headers)
        if why_not is not None:
            return refusal(401, why_not)
        if name not in ACTIONS:
            return refusal(404, f"there is no action '{name}'; there are: {', '.join(ACTIONS)}")
        if self._shown.actor is None:
            return refusal(409, "nobody is there who could do that")
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
    app = Starlette(
        routes=[
            Route("/api/view", routes.view),
            Route("/api/stream", routes.stream),
            Route("/api/schema", routes.schema),
            Route("/api/state", routes.state),
            Route("/api/dead_letters", routes.dead_letters),
            Route("/metrics", routes.metrics),
            Route("/api/actions/{action}", routes.action, methods=["GET", "POST"]),
            Mount("/", StaticFiles(directory=PAGE, html=True, check_dir=False)),
        ],
    )
    app.add_middleware(partial(Guarded, guard=guard))
    app.state.ending = routes.ending
    return app


def refusal(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers=HEADERS)


def _named(asked: QueryParams, name: str) -> str:
    if not asked.get(name):
        raise UserError(f"say which, as in ?{name}=count.")
    return asked[name]


def _number(asked: QueryParams, name: str, otherwise: int) -> int:
    text = asked.get(name, str(otherwise))
    if not text.isdigit() or not int(text):
        raise UserError(f"{name}={text}: give a whole number.")
    return min(int(text), looking.MOST_ROWS)


async def _wishes(request: Request) -> dict[str, Any]:
    body = await request.body()
    if not body:
        return {}
    if len(body) > LARGEST_BODY:
        raise UserError("so much cannot be wished for.")
    try:
        said = await request.json()
    except ValueError:
        raise UserError("what is wished for must be a JSON object.") from None
    if not isinstance(said, dict):
        raise UserError("what is wished for must be a JSON object.")
    return said


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
