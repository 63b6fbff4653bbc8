"""`SocketLines`: lines of text from a TCP connection, which cannot be read again.

Use it in a journal: `Journal(SocketLines("localhost", 9999), "journal/")`. A line is emitted when
its end has arrived. Data that was received but not yet logged when a worker dies is lost.
"""

import select
import socket

from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader, Source

CONNECT_TIMEOUT_S = 10.0
RECEIVE_BYTES = 1 << 20
LONGEST_LINE_BYTES = 16 << 20
LOOK_AGAIN_S = 0.01
CONNECT_AGAIN_S = 1.0


class SocketLines(Source[str]):
    """Connects to `host:port` and reads lines, as str without the line end.

    The stream ends when the other side closes the connection; with `reconnect=True` it continues
    with a new one. Bytes that are not in this encoding are replaced by U+FFFD. Lines cannot be
    read again: wrap it in a `Journal`.

    >>> feed = es.Journal(es.SocketLines("localhost", 9999), "journal/")
    >>> lines = es.Pipeline("lines").source(feed)
    """

    max_shards = 1
    replayable = False

    def __init__(
        self, host: str, port: int, *, encoding: str = "utf-8", reconnect: bool = False
    ) -> None:
        if not 0 < port < 65_536:
            raise UserError(f"port={port} is not a TCP port.")
        self._host = host
        self._port = port
        self._encoding = encoding
        self._reconnect = reconnect

    def check(self) -> None:
        raise UserError(
            "SocketLines cannot replay its records after a failure. Log them first: "
            f"Journal(SocketLines('{self._host}', {self._port}), 'journal/')."
        )

    def open(self, shard: int, shards: int) -> Reader:
        if shards > 1:
            raise UserError("SocketLines reads one connection: use shards=1.")
        return _SocketReader(self._host, self._port, self._encoding, self._reconnect)


class _SocketReader(Reader):
    def __init__(self, host: str, port: int, encoding: str, reconnect: bool) -> None:
        self._where = (host, port)
        self._encoding = encoding
        self._reconnect = reconnect
        self._socket: socket.socket | None = None
        self._begun = b""
        self._wait_s = LOOK_AGAIN_S
        self._given = 0
        self._received = 0
        """Bytes that the last read has taken."""
        self._ended = False

    @property
    def offset(self) -> int:
        """How many lines were read; for information only."""
        return self._given

    def seek(self, offset: int) -> None:
        raise UserError("SocketLines cannot go back: wrap it in a Journal.")

    def read(self) -> Batch | EndOfStream | None:
        self._wait_s = LOOK_AGAIN_S
        if self._ended:
            return END
        if self._socket is None and not self._connect():
            return None
        data = self._receive()
        if data is None:
            return None
        self._received = len(data)
        if not data:
            return self._closed()
        lines = (self._begun + data).split(b"\n")
        self._begun = lines.pop()
        if len(self._begun) > LONGEST_LINE_BYTES:
            raise ConnectorError(
                f"{self._named()} has sent {len(self._begun)} bytes without a line end. Check that "
                "it sends text, one record per line."
            )
        return self._given_on(lines)

    def ready_in_s(self) -> float:
        return self._wait_s

    def drained(self) -> bool:
        return self._received < RECEIVE_BYTES

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _named(self) -> str:
        return f"{self._where[0]}:{self._where[1]}"

    def _connect(self) -> bool:
        try:
            self._socket = socket.create_connection(self._where, CONNECT_TIMEOUT_S)
        except OSError as error:
            if self._reconnect and self._given:
                self._wait_s = CONNECT_AGAIN_S
                return False
            raise ConnectorError(
                f"cannot connect to {self._named()}: {error}. Start the program that listens "
                "there, and check the address."
            ) from error
        self._socket.setblocking(False)
        return True

    def _receive(self) -> bytes | None:
        """What has arrived; empty if the other side has closed; None if nothing came."""
        assert self._socket is not None
        ready, _, _ = select.select([self._socket], [], [], 0)
        if not ready:
            return None
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            self.close()
            if self._reconnect:
                self._begun = b""
                return None
            raise ConnectorError(f"the connection to {self._named()} was lost: {error}.") from error

    def _closed(self) -> Batch | EndOfStream | None:
        """The other side has closed the connection: its last line may lack an end."""
        self.close()
        last, self._begun = self._begun, b""
        self._ended = not self._reconnect
        if last:
            return self._given_on([last])
        return END if self._ended else None

    def _given_on(self, lines: list[bytes]) -> Batch | None:
        records = [line.removesuffix(b"\r").decode(self._encoding, "replace") for line in lines]
        self._given += len(records)
        return records or None
