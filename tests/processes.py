"""Waiting for the end of processes that are not our children: the system tells, nobody asks."""

import os
import select
from collections.abc import Iterable

PATIENCE_S = 600.0
"""Only guards against waiting for ever: far more than anything takes on a busy machine."""


def wait_until_gone(pids: Iterable[int]) -> None:
    """Return when every one of these processes has ended."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            assert poller.poll(PATIENCE_S * 1000), f"process {pid} is still alive"
        finally:
            os.close(handle)
