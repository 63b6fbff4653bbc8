"""What Spark prints and nobody can use is kept from the screen; all else is passed on."""

import subprocess
import sys

SCRIPT = """
import subprocess, sys
from everstream.spark.noise import quiet_start

PRINTS = '''
import sys
lines = [
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "mine, before",
    "PySpark daemon failed to flush the output to the worker process:",
    "Traceback (most recent call last):",
    "  File \\\\"daemon.py\\\\", line 95, in worker",
    "    outfile.flush()",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "",
    "mine, after",
]
sys.stderr.write("".join(line + chr(10) for line in lines))
'''
with quiet_start():
    process = subprocess.Popen([sys.executable, "-c", PRINTS])
process.wait()
import threading
for thread in threading.enumerate():
    if thread.name == "spark-stderr":
        thread.join()
"""


def test_only_the_noise_is_left_out() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == ["mine, before", "mine, after"]
