"""Where the runs of these tests keep their checkpoints: a folder, or a bucket of a real object store.

`make chaos-in-a-bucket` runs them all with the latter. A test that looks into the files of its store
is about folders, and is left out then.
"""

import os
from pathlib import Path

import pytest

IN_A_BUCKET = "EVERSTREAM_CHAOS_IN_A_BUCKET"
"""Set by whoever wants it; the processes of a test find the address of the bucket in here."""


def store_of(folder: Path) -> str | Path:
    """The store of the run that has this folder to itself."""
    bucket = os.environ.get(IN_A_BUCKET)
    return f"{bucket}/{folder.name}" if bucket else folder / "store"


in_a_folder = pytest.mark.skipif(
    IN_A_BUCKET in os.environ, reason="it looks into the files of the store"
)
