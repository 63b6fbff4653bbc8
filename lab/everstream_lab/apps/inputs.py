"""Inputs are made, never downloaded, and kept in a folder: made once, checked whenever used.

`$EVERSTREAM_INPUTS`, or `~/.cache/everstream/inputs`, has a folder for each application, class and
way of making it, so an input is regenerated when its generator changes. Beside it is the
output of the sequential program, made on first use: the truth to compare with.
"""

import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from everstream.errors import UserError
from everstream_lab.apps.application import CLASSES, Application, Tell, checksum

MANIFEST = "input.json"
GENERATORS = Path(__file__).parent / "generators"
LIBRARIES = (
    *("numpy", "numba", "opencv-contrib-python-headless", "scikit-image", "faiss-cpu"),
    *("pocketsphinx", "afinn"),
)
"""Those that results come from: another version may give others."""


def inputs_root() -> Path:
    """Where inputs are kept."""
    return Path(
        os.environ.get("EVERSTREAM_INPUTS") or Path.home() / ".cache" / "everstream" / "inputs"
    )


def input_folder(application: Application, size: str, tell: Tell | None = None) -> Path:
    """The folder with this application's input of a class; it is made if it is not there."""
    if size not in CLASSES:
        raise UserError(f"there is no class of inputs '{size}'; there are: {', '.join(CLASSES)}.")
    amount = application.sizes[size]
    way = _text_of(application.make_input, sorted(GENERATORS.glob("*.py")))
    folder = inputs_root() / application.name / f"{size}-{_short(f'{amount!r} {way}')}"
    if not (folder / MANIFEST).exists():
        _make(application, amount, folder, tell or (lambda done, total: None))
    _check(folder)
    return folder


def expected_checksum(application: Application, folder: Path) -> str:
    """That of the sequential program's result for this input; it runs unless it has before."""
    program = _text_of(application.sequential, sorted(Path(__file__).parent.glob("*.py")))
    versions = [f"{name} {version(name)}" for name in LIBRARIES]
    known = folder.with_name(f"{folder.name}.expected-{_short(f'{versions} {program}')}")
    if not known.exists():
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder.parent) as place:
            output = Path(place, application.result)
            application.sequential(folder, output)
            Path(place, "expected").write_text(checksum(output))
            Path(place, "expected").replace(known)
    return known.read_text()


def _text_of(function: Any, others: list[Path]) -> str:
    """The module of a function and these others, as text: other text may do other things."""
    own = inspect.getsource(sys.modules[function.__module__])
    return "".join([own, *(path.read_text() for path in others)])


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _make(application: Application, amount: Any, folder: Path, tell: Tell) -> None:
    """Made under another name first: a folder of the right name is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    try:
        application.make_input(amount, unfinished, tell)
        files = sorted(path for path in unfinished.rglob("*") if path.is_file())
        sums = {str(path.relative_to(unfinished)): checksum(path) for path in files}
        (unfinished / MANIFEST).write_text(json.dumps(sums, indent=2))
        try:
            unfinished.rename(folder)
        except OSError:
            if not (folder / MANIFEST).exists():  # else another process has made it
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check(folder: Path) -> None:
    sums: dict[str, str] = json.loads((folder / MANIFEST).read_text())
    for name, expected in sums.items():
        path = folder / name
        if not path.exists() or checksum(path) != expected:
            raise UserError(
                f"'{path}' is missing or is not what was made: delete the folder '{folder}', and "
                "it is made anew."
            )
