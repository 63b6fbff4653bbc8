"""Webhooks, against urllib3 posting the same lists over one connection.

The bare client keeps nothing: what it has not posted when it dies is lost. Ours first waits, synced,
for its checkpoint.
"""

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import msgspec

from everstream.connectors.webhook import Webhook, driver
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink
from everstream_lab.bench.connectors.file_sinks import OBJECTS_PER_BATCH
from everstream_lab.bench.connectors.file_sources import sample
from everstream_lab.bench.connectors.row import Row, SinkRow
from everstream_lab.bench.connectors.servers import Server


class LocalHttp(Server):
    """On a free port of the loopback interface; GET tells how many came since the last one."""

    def __init__(self, folder: Path) -> None:
        self._process: subprocess.Popen[str] | None = None

    @staticmethod
    def missing() -> str | None:
        return None

    def start(self) -> None:
        command = [sys.executable, "-m", "everstream_lab.bench.connectors.web"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = f"http://127.0.0.1:{int(self._process.stdout.readline())}/"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer in two pieces would be held back
    came: ClassVar[int] = 0

    def do_POST(self) -> None:
        records = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        _Handler.came += len(records)
        self._answer(b"")

    def do_GET(self) -> None:
        came, _Handler.came = _Handler.came, 0
        self._answer(str(came).encode())

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: it is watched by its count."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


PER_REQUEST = 100


class WebhookSink(SinkRow):
    name, bare_client, records = "webhook-sink", "urllib3 POST", 500_000
    server = "http"

    def batch(self) -> Batch:
        return sample(OBJECTS_PER_BATCH).to_dicts()

    def sink(self, folder: Path) -> Sink:
        return Webhook(self.address, batch=PER_REQUEST)

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        pool = driver().PoolManager()
        for batch in batches:
            for start in range(0, len(batch), PER_REQUEST):
                body = msgspec.json.encode(batch[start : start + PER_REQUEST])
                pool.request("POST", self.address, body=body)
        pool.clear()

    def arrived(self, folder: Path) -> int:
        return int(driver().request("GET", self.address).data)


ROWS: tuple[type[Row], ...] = (WebhookSink,)
