"""The process Spark forks its Python workers from, with our imports already done.

A worker that replaces a killed one then starts with everything loaded: restarting a host takes
the time of a fork, not of importing Polars, PyArrow and NumPy. Nothing is used here, only
imported: thread pools and ZeroMQ contexts do not survive a fork.
"""

import sys
from zipimport import zipimporter

import cloudpickle  # noqa: F401
import pyspark.daemon
import pyspark.worker

import everstream.spark.host

PRELOADED = everstream.spark.host


def forget_zips() -> None:
    """Let go of what Python knows of the zip files it has imported from.

    Each worker of Spark lets Python look for modules anew, and it would read the table of contents
    of Spark's own zip file again, for a third of a second. Whoever imports from a zip file after
    this has it looked up once, as ever.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    forget_zips()
    pyspark.daemon.manager()
