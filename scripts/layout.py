"""What the packages are and how large they are, read off the source.

python -m scripts.layout            the tree of packages, written into docs/explanation/architecture.md
python -m scripts.layout --figures  lines, files, names used twice, modules with one importer
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- layout: made by scripts/layout.py -->", "<!-- layout: end -->"
LIBRARY, LABORATORY = "everstream", "everstream_lab"


def home(name: str) -> Path:
    """The folder of a top-level package, in the root or in the folder of its distribution."""
    return next(
        path.parent
        for path in (*ROOT.glob(f"{name}/__init__.py"), *ROOT.glob(f"*/{name}/__init__.py"))
    )


def packages(top: Path) -> Iterator[tuple[int, Path]]:
    """The package and those in it, each with its depth, in the order of their names."""
    yield 0, top
    for folder in sorted(path.parent for path in top.glob("*/__init__.py")):
        yield from ((depth + 1, package) for depth, package in packages(folder))


def purpose(package: Path) -> str:
    """The first sentence of the docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    first = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"\.(?:\s|$)", first)[0]


def tree() -> str:
    """One line per package of both distributions."""
    lines: list[str] = []
    for name in (LIBRARY, LABORATORY):
        for depth, package in packages(home(name)):
            label = f"{'  ' * depth}{package.name}/"
            lines.append(f"{label:<24}{purpose(package)}")
    return "\n".join(lines)


def page_with_tree(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```\n{tree()}\n```\n{END}{after}"


def figures(name: str) -> dict[str, int]:
    """How large a distribution is, and how much of it is used in one place only."""
    top = home(name)
    files = sorted(top.rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in files}
    classes = Counter(
        node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    modules = {".".join(path.relative_to(top.parent).with_suffix("").parts): path for path in files}
    importers: Counter[str] = Counter()
    for tree in trees.values():
        imported: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        importers.update(imported & modules.keys())
    return {
        "lines": sum(len(path.read_text().splitlines()) for path in files),
        "files": len(files),
        "files under 50 lines": sum(len(path.read_text().splitlines()) < 50 for path in files),
        "class names used twice": sum(count > 1 for count in classes.values()),
        "modules with one importer": sum(
            importers[module] == 1 for module, path in modules.items() if path.stem != "__init__"
        ),
        "files in the largest folder": max(Counter(path.parent for path in files).values()),
    }


def main() -> None:
    if "--figures" in sys.argv:
        for name in (LIBRARY, LABORATORY):
            print(name)
            for what, number in figures(name).items():
                print(f"  {what:<28}{number:>8,}")
    else:
        PAGE.write_text(page_with_tree(PAGE.read_text()))


if __name__ == "__main__":
    main()
