"""Stands between a client and a real object store, and does what networks and busy servers do.

It answers 503, cuts connections before or after the request has been carried out, and lets a client
wait for the first byte; from a seed. Or it takes the wish for an exclusive create and ignores it, as
some servers do.
"""

import http.client
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.s3_server import S3Server

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class S3Proxy:
    """Used with `with`; faults begin when `trouble` is set."""

    def __init__(self, server: S3Server, seed: int = 0, *, cheats: bool = False) -> None:
        self.server = server
        self.cheats = cheats
        self.trouble = 0.0
        """The share of requests that something happens to."""
        self.happened: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []
        """What was asked for: the method, and the path."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def variables(self) -> dict[str, str]:
        port = self._http.server_address[1]
        return {**self.server.variables, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}

    def __enter__(self) -> "S3Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def fate(self) -> str:
        """What is to happen to the next request."""
        with self._lock:
            fates = ["busy", "cut before", "cut after", "slow"]
            hit = self._random.random() < self.trouble
            chosen = self._random.choice(fates) if hit else "fine"
            self.happened[chosen] += 1
            return chosen


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: S3Proxy

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _carry(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fate = self.proxy.fate()
        self.proxy.asked.append((self.command, urlsplit(self.path).path))
        if fate == "cut before":
            self.close_connection = True
            return
        if fate == "busy":
            self._answer(503, {"Content-Type": "application/xml"}, BUSY)
            return
        status, headers, answer = self._ask(body)
        if fate == "cut after":
            self.close_connection = True
            return
        if fate == "slow":
            time.sleep(0.2)
        self._answer(status, headers, answer)

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = dict(self.headers.items())
        wish = {name: value for name, value in headers.items() if name.lower() == "if-none-match"}
        if self.proxy.cheats and wish and self.command == "PUT":
            self.proxy.server.put(urlsplit(self.path).path.removeprefix("/"), body)
            return 200, {"ETag": '"cheated"'}, b""
        there = urlsplit(self.proxy.server.endpoint)
        connection = http.client.HTTPConnection(str(there.hostname), there.port, timeout=300)
        try:
            connection.request(self.command, self.path, body=body, headers=headers)
            response = connection.getresponse()
            answer = response.read()
            kept = {n: v for n, v in response.getheaders() if n.lower() != "transfer-encoding"}
            return response.status, kept, answer
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection"):
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _carry
