"""Other users of the machine reach the ports of a local Spark, and are refused there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, socket, struct, sys
from pathlib import Path
from everstream.engine.spark.context import exposure, make_context


def answer_to_a_stranger(port):
    "What Spark says to a message of somebody who knows no secret."
    body = bytes(20)
    frame = struct.pack(">BQI", 3, 7, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
        stranger.sendall(struct.pack(">Q", len(frame) + 8) + frame)
        return stranger.recv(4000).decode(errors="replace")


def command_lines():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            pass


context = make_context(sys.argv[1], "closed")
total = context.parallelize(range(10), 2).map(lambda n: n * n).sum()
settings = dict(context.getConf().getAll())
secret = settings.get("spark.authenticate.secret")
work = Path(context._jvm.java.lang.System.getenv("SPARK_HOME") or ".") / "work"
files = [path for path in work.rglob("*") if path.is_file()] if secret else []
print(json.dumps({
    "total": total,
    "authenticate": settings.get("spark.authenticate"),
    "has secret": secret is not None,
    "on a command line": secret is not None and any(secret in line for line in command_lines()),
    "in a file": [str(path) for path in files if secret.encode() in path.read_bytes()],
    "answer": answer_to_a_stranger(int(settings["spark.driver.port"])),
    "exposure": exposure(context),
}))
context.stop()
"""


def said_by(master: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, master],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "spark.authenticate.secret" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]"])
def test_a_local_spark_listens_to_nobody_who_does_not_know_its_secret(master: str) -> None:
    said = said_by(master)
    assert said["total"] == 285, "and works"
    assert "Expected SaslMessage" in said["answer"], "before, it would load whatever object came"
    assert said["authenticate"] == "true" and said["exposure"] is None
    assert said["has secret"] == master.startswith("local-cluster"), "Spark draws its own elsewhere"
    assert said["on a command line"] is False and said["in a file"] == []


def test_what_the_user_has_set_up_stays_and_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.authenticate false\n")
    said = said_by("local[1]", SPARK_CONF_DIR=str(tmp_path))
    assert said["authenticate"] == "false" and "other users of this machine" in said["exposure"]
