"""What the process that workers are forked from spares them."""

import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from everstream.spark.daemon import forget_zips


def test_workers_do_not_read_zip_files_again_that_their_parent_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("from_a_zip_first.py", "value = 1")
        file.writestr("from_a_zip_second.py", "value = 2")
    monkeypatch.syspath_prepend(str(packed))
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    assert importlib.import_module("from_a_zip_first").value == 1
    read: list[str] = []
    really_read = zipimport._read_directory  # type: ignore[attr-defined]

    def reading(path: str) -> object:
        read.append(path)
        return really_read(path)

    monkeypatch.setattr(zipimport, "_read_directory", reading)
    importlib.invalidate_caches()
    assert str(packed) in read, "otherwise there is nothing to spare"
    read.clear()
    forget_zips()
    importlib.invalidate_caches()
    assert read == []
    assert importlib.import_module("from_a_zip_second").value == 2
