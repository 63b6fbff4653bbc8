"""A web server in a process of its own that does each key's work once, and fails as it is told.

`Receiver` is the tests' side of it, used with `with`.
"""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import urllib3

ROOT = Path(__file__).parents[2]


class Receiver:
    """Started on a free port of the loopback interface; killed at the end."""

    def __enter__(self) -> "Receiver":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.connectors.webhook_receiver"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.host = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.url = f"{self.host}/hook"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def fail(self, *faults: str) -> None:
        """What happens to the next requests, one after the other; "" is well."""
        urllib3.request("PUT", f"{self.host}/faults", json=list(faults))

    def forget(self) -> None:
        """Know nothing any more."""
        urllib3.request("DELETE", f"{self.host}/seen")

    def seen(self) -> dict[str, Any]:
        """taken: [key, body] in order; tries: key -> how often; differing: keys of several bodies."""
        seen: dict[str, Any] = urllib3.request("GET", f"{self.host}/seen").json()
        return seen

    def records(self) -> list[Any]:
        """What those whose work was done had in them, in order."""
        bodies = [body for _, body in self.seen()["taken"]]
        return [r for body in bodies for r in (body if isinstance(body, list) else [body])]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer in two pieces is held back for 40 ms
    lock = threading.Lock()
    faults: list[str] = []  # noqa: RUF012
    taken: dict[str, Any] = {}  # noqa: RUF012
    tries: dict[str, int] = {}  # noqa: RUF012
    differing: list[str] = []  # noqa: RUF012
    headers_seen: list[str] = []  # noqa: RUF012

    def do_PUT(self) -> None:
        self.faults.extend(json.loads(self._body()))
        self._answer(200)

    def do_DELETE(self) -> None:
        with self.lock:
            for kept in (self.faults, self.taken, self.tries, self.differing, self.headers_seen):
                kept.clear()
        self._answer(200)

    def do_GET(self) -> None:
        with self.lock:
            seen = {
                "taken": list(self.taken.items()),
                "tries": self.tries,
                "differing": self.differing,
                "authorization": self.headers_seen,
            }
            self._answer(200, json.dumps(seen))

    def do_POST(self) -> None:
        body, key = json.loads(self._body()), self.headers["Idempotency-Key"]
        with self.lock:
            fault = self.faults.pop(0) if self.faults else ""
            self.tries[key] = self.tries.get(key, 0) + 1
            self.headers_seen.append(self.headers.get("Authorization", ""))
            if fault in ("", "lost") and self.taken.setdefault(key, body) != body:
                self.differing.append(key)
        if fault in ("cut", "lost"):
            self.close_connection = True
            self.connection.close()
        elif fault == "silent":
            threading.Event().wait(60)
        elif fault:
            status, _, retry_after = fault.partition(" ")
            echo = f"no: {self.headers.get('Authorization')} {self.path} " + "x" * 5_000
            self._answer(int(status), echo, {"Retry-After": retry_after} if retry_after else {})
        else:
            self._answer(200)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, status: int, text: str = "", headers: dict[str, str] | None = None) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Connections are cut on purpose."""


if __name__ == "__main__":
    with _Server(("127.0.0.1", 0), _Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
