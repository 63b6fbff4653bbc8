"""What is spared to workers that get Spark's own Python as zip files."""

import importlib
import sys
import zipfile
import zipimport
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from everstream.engine.spark.zips import forget_zips, use_installed


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


@pytest.mark.parametrize(("installed", "taken"), [("1.2", "folder"), ("1.3", "zip"), (None, "zip")])
def test_a_package_comes_from_where_it_is_installed_if_that_is_the_same_version(
    installed: str | None, taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, folder = tmp_path / "packed.zip", tmp_path / "folder"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("twice_there/__init__.py", "")
        file.writestr("twice_there/version.py", "version = '1.2'")
    if installed is not None:
        (folder / "twice_there").mkdir(parents=True)
        (folder / "twice_there" / "__init__.py").write_text("")
        (folder / "twice_there" / "version.py").write_text(f"version = '{installed}'")
    monkeypatch.setattr(sys, "path", [str(packed), str(folder), *sys.path])
    use_installed("twice_there", "not_there_at_all")
    found = PathFinder.find_spec("twice_there")
    assert found is not None and found.origin is not None
    assert Path(found.origin).parents[1] == {"zip": packed, "folder": folder}[taken]
