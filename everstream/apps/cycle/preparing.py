"""Inputs and sequential results of several applications, made on all cores before anything is run."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from everstream.apps.inputs import expected_checksum, input_folder
from everstream.apps.lookup import application_at
from everstream.errors import EverstreamError


def prepare(
    applications: Sequence[str], size: str, tell: Callable[[str], None] = lambda name: None
) -> dict[str, str]:
    """Make what is not there yet; the applications for which that failed, and why.

    `tell` hears of each that is ready.
    """
    failed: dict[str, str] = {}
    # Not by fork: libraries may have threads by now.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        waiting = {pool.submit(_prepare, name, size): name for name in applications}
        for done in as_completed(waiting):
            try:
                done.result()
            except EverstreamError as error:
                failed[waiting[done]] = error.message
            except BrokenProcessPool:
                failed[waiting[done]] = "a process that made its input was killed"
            else:
                tell(waiting[done])
    return failed


def _prepare(name: str, size: str) -> None:
    application = application_at(name)
    expected_checksum(application, input_folder(application, size))
