"""A worker that the kernel kills for want of memory, and what the run says of it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstream as es
from everstream.engine.continuous.worker.memory import KMSG

from .conftest import MASTER

LIMIT_BYTES = 32 << 20
GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group that may have little memory, for one who goes there by himself."""
    name = f"everstream-test-{os.getpid()}"
    made = GROUPS / "memory" / name
    limits = {"memory.limit_in_bytes": str(LIMIT_BYTES), "memory.swappiness": "0"}
    if not made.parent.is_dir():
        made, limits = GROUPS / name, {"memory.max": str(LIMIT_BYTES), "memory.swap.max": "0"}
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        for limit, value in limits.items():
            try:
                (made / limit).write_text(value)
            except OSError as error:
                pytest.skip(f"memory cannot be limited here: {error}")
        yield made
    finally:
        with contextlib.suppress(OSError):
            made.rmdir()


class Hungry(es.Operator):
    """Takes more memory than there is, once."""

    def __init__(self, mark: Path, group: Path) -> None:
        self.mark = mark
        self.group = group

    def process(self, record: int, ctx: es.Context) -> None:
        if record == 3 and not self.mark.exists():
            self.mark.touch()
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
            bytearray(b"x") * (4 * LIMIT_BYTES)
        ctx.emit(record)


def test_a_worker_killed_for_want_of_memory_is_told_of_with_its_operator(
    tmp_path: Path, group: Path
) -> None:
    pipeline = es.Pipeline("hungry")
    hungry = Hungry(tmp_path / "mark", group)
    pipeline.source(es.Range(10, batch=1)).process(hungry, name="hungry").collect()
    result = pipeline.run(checkpoint=es.Coordinated(every="200ms"), master=MASTER)
    assert result.collected() == list(range(10))
    (report,) = result.recoveries
    assert "killed by SIGKILL" in report.what and "operator 'hungry' (shard 0)" in report.what
    if os.access(KMSG, os.R_OK):
        assert "by the kernel for lack of memory: it had used" in report.what
        assert "its control group has no more" in report.what
    else:
        assert "probably out of memory" in report.what
