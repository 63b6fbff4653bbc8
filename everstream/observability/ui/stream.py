"""Server-sent events: the whole view once, then its changes.

A patch has the top-level names of the view that differ, each with its whole new value. Figures are
sent twice a second, failures at once.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from everstream.observability.ui.views import Shown

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
