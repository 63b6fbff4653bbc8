"""A guard before the key exchange: limits how many bytes each network connection may send.

ZeroMQ limits the size of a message's parts, not their number, and keeps all of them until the last
has arrived. Anyone may connect to the key exchange, so the limit must apply before ZeroMQ. The
turnstile accepts the connections, forwards their bytes to a unix socket, and closes connections
that send more than a request needs, take too long, or are too many at once.
"""

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Final

MOST_CONNECTIONS: Final = 256
"""At once. When more come, the oldest is closed: its worker sends its request again."""
READ_BYTES: Final = 1 << 16


class Turnstile:
    """Listens on a TCP port of an interface until it is closed."""

    def __init__(
        self, interface: str, target: str, *, largest_bytes: int, longest_s: float
    ) -> None:
        """target: the path of a unix socket. largest_bytes: limit per connection, in total."""
        self._target = target
        self._largest_bytes = largest_bytes
        self._longest_s = longest_s
        self._listening = socket.create_server((interface, 0), backlog=MOST_CONNECTIONS)
        self.port: int = self._listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._connections: dict[asyncio.Task[None], None] = {}
        """Oldest first."""
        self._thread = threading.Thread(
            target=self._run, name="everstream-key_exchange", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._come, sock=self._listening, limit=READ_BYTES)
        await self._closing.wait()
        server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        if len(self._connections) > MOST_CONNECTIONS:
            next(iter(self._connections)).cancel()
        try:
            with suppress(OSError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(self._longest_s):
                    await self._pass_on(reader, writer)
        finally:
            del self._connections[task]
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onward = await asyncio.open_unix_connection(self._target, limit=READ_BYTES)
        answering = asyncio.create_task(_copy(answers, writer))
        try:
            left = self._largest_bytes
            while left > 0 and (data := await reader.read(left)):
                onward.write(data)
                await onward.drain()
                left -= len(data)
        finally:
            answering.cancel()
            onward.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()
