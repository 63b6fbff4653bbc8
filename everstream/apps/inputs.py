"""Inputs are made, never downloaded, and kept in a folder: made once, checked whenever used.

`$EVERSTREAM_INPUTS`, or `~/.cache/everstream/inputs`, has a folder for each application, class and
way of making it, so what a changed generator would make otherwise is made anew. Beside it stands
what the sequential program makes of it, once somebody has asked: the truth to compare with.
"""

import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from everstream.apps.application import CLASSES, Application, Tell, checksum
from everstream.errors import UserError

MANIFEST = "input.json"
GENERATORS = Path(__file__).parent / "generators"


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
    makers = [_module_of(application.make_input).__file__, *sorted(GENERATORS.glob("*.py"))]
    way = "".join(Path(maker).read_text() for maker in makers)
    folder = inputs_root() / application.name / f"{size}-{_short(f'{amount!r} {way}')}"
    if not (folder / MANIFEST).exists():
        _make(application, amount, folder, tell or (lambda done, total: None))
    _check(folder)
    return folder


def expected_checksum(application: Application, folder: Path) -> str:
    """That of the sequential program's result for this input; it runs unless it has before."""
    program = inspect.getsource(_module_of(application.sequential))
    known = folder.with_name(f"{folder.name}.expected-{_short(program)}")
    if not known.exists():
        with tempfile.TemporaryDirectory(prefix="everstream-") as place:
            output = Path(place, application.result)
            application.sequential(folder, output)
            Path(place, "known").write_text(checksum(output))
            shutil.move(Path(place, "known"), known)
    return known.read_text()


def _module_of(function: Any) -> Any:
    return sys.modules[function.__module__]


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
            if not (folder / MANIFEST).exists():  # else somebody else has made it meanwhile
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
