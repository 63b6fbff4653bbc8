"""What a host was at, read off the stacks that Python's fault handler left."""

import os
import signal
import subprocess
import sys

from everstream.spark.life_sign import at_work, is_awake

STACKS = """Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/x/everstream/spark/life_sign.py", line 70 in _loop

Current thread 0x00007a (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/app.py", line 12 in slow
  File "/x/everstream/pipeline/builtin.py", line 40 in process_batch
  File "/x/everstream/runtime/runner.py", line 300 in _deliver
"""


def test_the_innermost_line_that_a_user_wrote_is_shown() -> None:
    assert at_work(STACKS) == 'File "/home/me/app.py", line 12 in slow'


def test_where_a_user_wrote_nothing_the_innermost_line_is_shown() -> None:
    text = "\n".join(line for line in STACKS.splitlines() if "/home/me" not in line)
    assert "string_at" in str(at_work(text))


def test_a_host_that_was_not_at_work_shows_nothing() -> None:
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
