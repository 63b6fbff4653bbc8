"""An annotated function's pipeline as a program to read, keep and run: `everstream annotate`."""

import ast
import builtins
import symtable
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstream.annotations.function import AnnotatedFunction
from everstream.errors import UserError

PLACES = {
    "Collect": "everstream",
    "Keyed": "everstream",
    "islice": "itertools",
}
"""Where generated code has its support from, if not from everstream.annotations."""


def printed(function: AnnotatedFunction[..., Any], values: Mapping[str, Any] | None = None) -> str:
    """The generated program as text; with `values` for its parameters it can be run as it is."""
    program = function.program
    body = ast.unparse(ast.Module(function.generated.body, []))
    file = Path(program.origin.file)
    parts = [
        f'"""The pipeline that Everstream makes of {program.name} in {file.name}."""',
        _imports(function, body, file),
        body,
    ]
    if values is not None:
        listed = ", ".join(f"{name}={value!r}" for name, value in values.items())
        parts.append(f"pipeline = {program.name}({listed})")
        parts.append('if __name__ == "__main__":\n    print(pipeline.run().returned)')
    return "\n\n".join(parts) + "\n"


def _imports(function: AnnotatedFunction[..., Any], body: str, file: Path) -> str:
    names = set(_global_names(symtable.symtable(body, "generated", "exec")))
    lines: list[str] = []
    imported: dict[str, list[str]] = {}
    for name, called in sorted(function.generated.aliases.items()):
        if called in names:
            place = PLACES.get(name, "everstream.annotations")
            imported.setdefault(place, []).append(name if name == called else f"{name} as {called}")
            names.discard(called)
    lines += [
        f"from {place} import {', '.join(members)}" for place, members in sorted(imported.items())
    ]
    names = {name for name in names if name not in vars(builtins) or name in _own(function)}
    for statement in ast.parse("".join(function.program.origin.lines)).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            kept = [a for a in statement.names if (a.asname or a.name.partition(".")[0]) in names]
            if kept and getattr(statement, "level", 0) == 0:
                statement.names = kept
                lines.append(ast.unparse(statement))
                names -= {a.asname or a.name.partition(".")[0] for a in kept}
    if names:
        if not file.stem.isidentifier():
            raise UserError(
                f"the program needs {', '.join(sorted(names))} from '{file.name}', which Python "
                "cannot import under that name. Rename the file."
            )
        lines.append(f"from {file.stem} import {', '.join(sorted(names))}")
    return "\n".join(lines)


def _own(function: AnnotatedFunction[..., Any]) -> dict[str, Any]:
    return function.function.__globals__


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that are used and that the code itself does not define."""
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        used = symbol.is_referenced()
        if used and ((top and not symbol.is_assigned()) or (not top and symbol.is_global())):
            yield symbol.get_name()
    defined = {s.get_name() for s in table.get_symbols() if s.is_assigned()} if top else set()
    for inner in table.get_children():
        yield from (name for name in _global_names(inner) if name not in defined)
