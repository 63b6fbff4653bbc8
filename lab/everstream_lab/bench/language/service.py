"""A local HTTP service that stalls and fails, in a separate process, and a client for it.

It keeps connections open. By the number in the path it is decided which answers are late and which
first attempts are refused, so that every round asks the same.
"""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from everstream.pipeline.calls.options import RetryAfter

ANSWER_S, STALL_S = 0.01, 0.2
STALLS_EACH, FAILS_EACH = 50, 97


def _serve(ready: Any) -> None:
    refused: set[str] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode().lstrip("/")
                number = int(path.partition("-")[2])
                await asyncio.sleep(STALL_S if number % STALLS_EACH == 0 else ANSWER_S)
                status, extra = b"200 OK", b""
                if number % FAILS_EACH == 0 and path not in refused:
                    refused.add(path)
                    status, extra = b"503 Service Unavailable", b"Retry-After: 0\r\n"
                body = str(number * 2).encode()
                length = b"Content-Length: %d\r\n" % len(body)
                writer.write(b"HTTP/1.1 " + status + b"\r\n" + extra + length + b"\r\n" + body)
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def service() -> Iterator[int]:
    """The port of one that runs until the end of the `with` statement."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_serve, args=(its,), daemon=True)
    process.start()
    try:
        yield int(mine.recv())
    finally:
        process.kill()
        process.join()


class Client:
    """Asks the service with plain streams, over connections that it keeps."""

    def __init__(self, port: int, round_name: str) -> None:
        self.port = port
        self.round_name = round_name
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __call__(self, number: int) -> int:
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET /{self.round_name}-{number} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        self._idle.append((reader, writer))
        if b" 503 " in head[:16]:
            raise RetryAfter(0)
        return int(body)
