"""Processes that compile at the same time do not get each other's machine code."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everstream.errors import UserError
from everstream.transactions.compiled import VARIABLE, cache_folder, kernel

SOURCE = "def first(values):\n    return values[0] + 1\n"

OTHER = """
import sys
from pathlib import Path
import numpy as np
from tests.transactions.test_machine_code import compiled_from

first = compiled_from(Path(sys.argv[1]))
print("ready", flush=True)
assert first(np.array([1.5])) == 2.5
"""


def compiled_from(path: Path) -> Any:
    namespace: dict[str, Any] = {"__name__": __name__}  # machine code asks for its module
    exec(compile(SOURCE, str(path), "exec"), namespace)
    return kernel(namespace["first"])


def test_two_signatures_that_are_saved_at_once_keep_their_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "first.py"
    path.write_text(SOURCE)
    first = compiled_from(path)
    files = first._cache._cache_file
    save_index = files._save_index
    others: list[subprocess.Popen[str]] = []

    def meanwhile(overloads: Any) -> None:
        """Another process saves its signature when this one has read the index, and not written it."""
        other = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(path)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        others.append(other)
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        with suppress(subprocess.TimeoutExpired):
            other.wait(timeout=3)  # it has to wait for us; without a lock it would go ahead
        save_index(overloads)

    monkeypatch.setattr(files, "_save_index", meanwhile)
    assert first(np.array([41])) == 42
    assert [other.wait() for other in others] == [0]

    later = compiled_from(path)
    assert later(np.array([41])) == 42
    assert later(np.array([1.5])) == 2.5
    assert len(later.stats.cache_hits) == 2


def test_a_kernel_cache_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there is executed."""
    folder = tmp_path / "kernels"
    monkeypatch.setenv(VARIABLE, str(folder))
    assert cache_folder() == folder and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(UserError, match="others may write to it"):
        cache_folder()
    folder.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(UserError, match="another user"):
        cache_folder()
