"""A worker that is killed and comes back on the same machine reads no snapshot from the bucket."""

from contextlib import suppress
from pathlib import Path

import pytest

from everstream.state.local_recovery import PREFIX
from tests.cli.commands import Command
from tests.gated import TOTAL, expected, open_gate, prepare
from tests.output import rows_in
from tests.s3_proxy import S3Proxy
from tests.s3_server import BUCKET, S3Server

UNSCRUBBED = """
from everstream.engine.scrubber import Scrubber
Scrubber.start = lambda self: None
"""
"""The driver reads snapshots now and then, to see whether they are whole: not in here."""


def snapshots_read(proxy: S3Proxy) -> list[str]:
    parts = ("/objects/", "/copies/")
    return [
        path for method, path in proxy.asked if method == "GET" and any(p in path for p in parts)
    ]


@pytest.mark.timeout(900)
def test_killed_workers_and_the_next_driver_find_their_snapshots_on_their_own_machine(
    tmp_path: Path,
) -> None:
    prepare(tmp_path, 20_000)
    with (tmp_path / "steady.py").open("a") as program:
        program.write(UNSCRUBBED)
    out = tmp_path / "out"
    with S3Server(tmp_path / "s3") as server, S3Proxy(server) as proxy:
        command = Command(
            *("run", "steady.py", "--every", "200ms", "--master", "local[2]"),
            *("--store", f"s3://{BUCKET}/checkpoints", "--kill", "sum:1@3000"),
            cwd=tmp_path,
            variables={**proxy.variables, "TMPDIR": str(tmp_path)},
        )
        command.wait_for("output", lambda: rows_in(out).total() >= 20_000)
        assert snapshots_read(proxy) == [], "one was killed, and both went back"
        (near,) = tmp_path.glob(f"{PREFIX}*")
        assert any(near.iterdir())
        command.driver().kill()
        open_gate(tmp_path, 40_000)
        command.wait_for("output of the next driver", lambda: rows_in(out).total() >= 40_000)
        assert snapshots_read(proxy) == [], "its workers found them, too"
        for copy in near.iterdir():
            with suppress(FileNotFoundError):  # removed in between, with its epoch
                copy.write_bytes(copy.read_bytes()[:-1] + b"?")
        command.driver().kill()
        open_gate(tmp_path, TOTAL)
        assert command.end() == 0, command.output
        assert snapshots_read(proxy), "damaged copies were passed over"
    assert rows_in(out) == expected()
    assert not list(tmp_path.glob(f"{PREFIX}*")), "nothing is left behind"
