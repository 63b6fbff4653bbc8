"""Azurite for tests, Microsoft's emulator of Azure Blob Storage: one process, loopback only."""

import base64
import hashlib
import hmac
import subprocess
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from tests.installing import install
from tests.s3_server import free_ports

PLACE = Path(__file__).parents[1] / ".venv"
CONTAINER = "tests"
PATIENCE_S = 120.0


class AzureServer:
    """Used with `with`; it has the account and the key that are written in its manual."""

    account = "devstoreaccount1"
    secret = (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )

    def __init__(self, folder: Path) -> None:
        install("azurite")
        self._folder = folder
        (self._port,) = free_ports(1)
        folder.mkdir(parents=True)
        self._root = f"http://127.0.0.1:{self._port}/{self.account}"
        self.variables = {
            "AZURE_STORAGE_ENDPOINT": self._root,
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.secret,
        }
        """What a process has in its environment to find it."""

    def __enter__(self) -> Self:
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(self._making_the_container(), timeout=10).close()
                return self
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > until_s:
                    self.__exit__()
                    tail = (self._folder / "log").read_text()[-3000:]
                    raise RuntimeError(f"Azurite did not start: {error}\n{tail}") from error
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _command(self) -> list[str]:
        (program,) = PLACE.glob("azurite/*/node_modules/.bin/azurite-blob")
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(self._port)]
        kept = ["--location", str(self._folder), "--skipApiVersionCheck", "--disableTelemetry"]
        return [str(program), *where, *kept]

    def _making_the_container(self) -> urllib.request.Request:
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        signed_headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
        lines = [*(f"{name}:{value}" for name, value in signed_headers.items())]
        what = [f"/{self.account}/{self.account}/{CONTAINER}", "restype:container"]
        text = "\n".join(["PUT", *[""] * 11, *lines, *what]).encode()
        signed = hmac.new(base64.b64decode(self.secret), text, hashlib.sha256).digest()
        key = f"SharedKey {self.account}:{base64.b64encode(signed).decode()}"
        return urllib.request.Request(
            f"{self._root}/{CONTAINER}?restype=container",
            method="PUT",
            headers={**signed_headers, "Authorization": key, "Content-Length": "0"},
        )
