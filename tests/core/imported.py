"""What the modules of Everstream import, read off their source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import everstream

ROOT = Path(everstream.__file__).parent


def modules_in(package: str) -> list[Path]:
    """Of a package, or of a module, with a dot where it is in another package."""
    folder = ROOT.joinpath(*package.split("."))
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module, and whether it is imported when the module itself is."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in late
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module, id(node) not in late
