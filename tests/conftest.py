"""Lets Spark's Python workers import the tests, wherever the process that starts Spark stands."""

import os
from pathlib import Path

_ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(
    [_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
)
