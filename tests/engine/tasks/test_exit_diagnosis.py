"""How the end of a worker's process is told, from whatever is left of it."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import everstream as es
from everstream.core.plan import Plan, make_plan
from everstream.engine.continuous.liveness.crash_breadcrumb import (
    FILE,
    CrashBreadcrumb,
    last_at_work,
)
from everstream.engine.continuous.liveness.exit_diagnosis import ExitDiagnosis, exit_status
from everstream.engine.continuous.worker.memory import (
    KernelWords,
    MemoryKills,
    Starved,
    in_words,
    memory_bytes,
)

STACKS = """Everstream: package in /x/everstream
Fatal Python error: Segmentation fault

Current thread 0x00007a (most recent call first):
  File "/home/me/app.py", line 12 in slow
  File "/x/everstream/runtime/runner.py", line 300 in _deliver
"""
LEFT = """Everstream: package in /x/everstream

Everstream: os._exit 3
Stack (most recent call first):
  File "/home/me/app.py", line 7 in leave
  File "/x/everstream/runtime/runner.py", line 300 in _deliver
"""
OPERATOR = "operator 'map' (shard 1)"


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (ExitDiagnosis(), "its process ended"),
        (
            ExitDiagnosis(STACKS, OPERATOR, signal.SIGSEGV),
            f"its process ended: Segmentation fault, in {OPERATOR}, "
            'in File "/home/me/app.py", line 12 in slow',
        ),
        (
            ExitDiagnosis(LEFT, OPERATOR),
            f"its process ended: os._exit(3), in {OPERATOR}, "
            'in File "/home/me/app.py", line 7 in leave',
        ),
        (
            ExitDiagnosis(status=3 << 8, operator=OPERATOR),
            f"its process ended with exit code 3; its last operator was {OPERATOR}",
        ),
        (ExitDiagnosis(status=signal.SIGTERM), "its process was killed by SIGTERM"),
        (
            ExitDiagnosis(status=signal.SIGKILL, memory_kills=0),
            "its process was killed by SIGKILL, and not by the kernel for lack of memory",
        ),
        (
            ExitDiagnosis("", OPERATOR, signal.SIGKILL, 3_100_000_000, 1, 4_000_000_000),
            "its process was killed by SIGKILL, probably out of memory (it had used 3.1 GB, 4 GB "
            f"in total); its last operator was {OPERATOR}",
        ),
        (
            ExitDiagnosis("", OPERATOR, None, 10, 1, 9, Starved(64_000_000, True)),
            "its process was killed by SIGKILL, by the kernel for lack of memory: it had used 64 MB, "
            f"and its control group has no more; its last operator was {OPERATOR}",
        ),
        (
            ExitDiagnosis(status=signal.SIGKILL, memory_kills=None),
            "its process was killed by SIGKILL, probably out of memory",
        ),
    ],
)
def test_the_end_of_a_process_is_told_as_far_as_it_is_known(left: ExitDiagnosis, told: str) -> None:
    assert str(left) == told


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no process handles")
def test_an_exit_status_is_read_off_a_handle_or_not_known() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input(); import os; os._exit(3)"], stdin=-1)
    handle = os.pidfd_open(child.pid)
    try:
        child.communicate(b"\n")
        select.select([handle], [], [])
        assert exit_status(handle) in (3 << 8, None)  # None before Linux 6.15
    finally:
        os.close(handle)


def plan() -> Plan:
    pipeline = es.Pipeline("places")
    numbers = pipeline.source(es.Range(4), name="numbers", shards=2)
    numbers.map(lambda n: n, name="map").collect()
    return make_plan(pipeline, 1)


def test_the_operator_last_at_work_can_be_read_when_the_process_is_gone(tmp_path: Path) -> None:
    made = plan()
    shards = made.workers[0]
    assert last_at_work(tmp_path, made, shards) is None
    breadcrumb = CrashBreadcrumb(str(tmp_path), made, shards)
    assert breadcrumb.now() is None and last_at_work(tmp_path, made, shards) is None
    second = next(shard for shard in shards if shard.number == 1)
    breadcrumb.of(second)[0] = 1
    breadcrumb.enter(shards.index(second))
    assert breadcrumb.now() == (second, "map")
    assert last_at_work(tmp_path, made, shards) == OPERATOR
    (tmp_path / FILE).write_bytes(b"\0")
    assert last_at_work(tmp_path, made, shards) is None


def test_kills_for_want_of_memory_are_counted_from_the_start_of_the_run(tmp_path: Path) -> None:
    assert MemoryKills(tmp_path).since() is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\noom_kill 4\n")
    kills = MemoryKills(tmp_path)
    assert kills.since() == 0
    (tmp_path / "proc/vmstat").write_text("oom_kill 5\n")
    assert kills.since() == 1


@pytest.mark.parametrize(
    ("group", "place", "limit"),
    [
        ("0::/jobs/a\n", "sys/fs/cgroup/jobs/a/memory.max", "2000000000"),
        ("4:memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000000000"),
        ("0::/jobs/a\n", "sys/fs/cgroup/jobs/a/memory.max", "max"),
    ],
)
def test_the_memory_there_is_is_that_of_the_container(
    tmp_path: Path, group: str, place: str, limit: str
) -> None:
    assert memory_bytes(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:   8000000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(group)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(limit + "\n")
    known = memory_bytes(tmp_path)
    assert known == (2_000_000_000 if limit != "max" else 8_192_000_000)


IN_GROUP = (
    "3,812,{at_us},-;Memory cgroup out of memory: Killed process {pid} (python) total-vm:800000kB, "
    "anon-rss:62500kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
)
ON_MACHINE = IN_GROUP.replace("Memory cgroup out", "Out")


def test_the_kernel_is_asked_whether_it_killed_a_process_for_want_of_memory(tmp_path: Path) -> None:
    kmsg, now_us = tmp_path / "kmsg", int(time.monotonic() * 1e6)
    kernel = KernelWords(kmsg)
    assert kernel.of(7) is None, "where nobody may read its words"
    long_ago = IN_GROUP.format(at_us=now_us - 3_600_000_000, pid=9)
    said = [IN_GROUP.format(at_us=now_us, pid=7), ON_MACHINE.format(at_us=now_us, pid=8), long_ago]
    kmsg.write_text("6,1,0,-;Linux version 6.18\n SUBSYSTEM=x\n" + "\n".join(said) + "\n")
    assert kernel.of(7) == Starved(64_000_000, True)
    assert kernel.of(8) == Starved(64_000_000, False)
    assert kernel.of(9) is kernel.of(70) is None, "it had that number in another life"


def test_sizes_are_put_in_words() -> None:
    assert [in_words(n) for n in (12, 1500, 3.1e9, 2e13)] == [
        "12 bytes",
        "1.5 kB",
        "3.1 GB",
        "20 TB",
    ]
