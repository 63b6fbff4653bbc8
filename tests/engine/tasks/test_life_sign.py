"""What a worker was at, read off the stacks that Python's fault handler left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import everstream
from everstream.engine.continuous.liveness import life_sign
from everstream.engine.continuous.liveness.life_sign import at_work, code_folders, is_awake

FOLDERS = """Everstream: package in /x/everstream
Everstream: installed code in /usr/lib/python3.11
Everstream: installed code in /x/lib/python3.11/site-packages
"""
STACKS = f"""{FOLDERS}Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/x/everstream/spark/life_sign.py", line 70 in _loop

Current thread 0x00007a (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/app.py", line 12 in slow
  File "/x/everstream/pipeline/operators/builtin.py", line 40 in process_batch
  File "/x/everstream/runtime/runner.py", line 300 in _deliver
"""


def test_the_innermost_line_that_a_user_wrote_is_shown() -> None:
    assert at_work(STACKS) == 'File "/home/me/app.py", line 12 in slow'


def test_where_a_user_wrote_nothing_the_innermost_line_is_shown() -> None:
    text = "\n".join(line for line in STACKS.splitlines() if "/home/me" not in line)
    assert "string_at" in str(at_work(text))


@pytest.mark.parametrize(
    "project",
    [
        "/home/me/everstream",
        "/x/everstream-jobs",
        "/home/me/lib/python",
        "/home/everstream/lib/python3.11/src",
    ],
)
def test_a_project_is_a_users_whatever_its_folder_is_called(project: str) -> None:
    text = STACKS.replace("/home/me", project)
    assert at_work(text) == f'File "{project}/app.py", line 12 in slow'


def test_the_package_is_ours_wherever_it_lies_also_in_an_archive() -> None:
    text = STACKS.replace("/x/everstream", "/tmp/spark-1/userFiles/code.zip/everstream")
    assert at_work(text) == 'File "/home/me/app.py", line 12 in slow'


def test_our_own_code_is_where_the_package_is() -> None:
    package = Path(everstream.__file__).parent
    assert code_folders().startswith(f"Everstream: package in {package}\n")


def test_a_folder_is_recognised_in_the_letters_that_the_fault_handler_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "jürgen €" / "everstream"
    (package / "runtime").mkdir(parents=True)
    monkeypatch.setattr(life_sign, "PACKAGE", str(package))
    runner = package / "runtime" / "runner.py"
    source = "import faulthandler\ndef deliver(stacks): faulthandler.dump_traceback(stacks)\n"
    names: dict[str, object] = {}
    exec(compile(source, str(runner), "exec"), names)
    with (tmp_path / "stacks").open("w+") as stacks:
        print(code_folders(), file=stacks, flush=True)
        names["deliver"](stacks)  # type: ignore[operator]
        stacks.seek(0)
        told = at_work(stacks.read())
    assert told is not None and "test_life_sign.py" in told


def test_a_worker_that_was_not_at_work_shows_nothing() -> None:
    assert at_work("") is None
    assert at_work('Thread 0x1:\n  File "/usr/lib/python3.11/threading.py", line 3 in wait') is None


def test_a_stopped_process_is_not_awake_and_a_dead_one_neither() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_awake(child.pid)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert not is_awake(child.pid)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert not is_awake(child.pid)
