"""The process from which Spark forks its Python workers, with our imports already done.

A worker that replaces a killed one starts with everything loaded: restarting a worker takes the
time of a fork, not of importing Polars, PyArrow and NumPy. This process only imports the modules
and does not use them: thread pools and ZeroMQ contexts do not survive a fork.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import cloudpickle  # noqa: F401

from everstream.engine.spark.zips import forget_zips, use_installed

use_installed("pyspark", "py4j")

from everstream.engine.spark.launcher import serve_workers  # noqa: E402

PRELOADED = (
    "everstream.engine.tasks.workers",
    "everstream.engine.run",
    "everstream.pipeline.aggregation.running",
    "everstream.connectors.collect",
    "everstream.connectors.files.lines",
    "everstream.connectors.generate.paced",
    "everstream.connectors.generate.sources",
)
"""What workers have loaded when they run, together with what modules of users import."""
for module in PRELOADED:
    import_module(module)


def leaving_quietly(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker whose connection to Spark is gone ends without a traceback: nothing is lost.

    Errors in a task reach Spark in another way.
    """

    def work(*args: Any) -> int:
        try:
            return worker(*args)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    return work


if __name__ == "__main__":
    forget_zips()
    serve_workers(leaving_quietly)
