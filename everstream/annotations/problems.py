"""Mistakes in annotated code: which line, what is wrong there, and what to write instead.

They are found when the function is defined, long before anything runs, and shown the way Python
shows a syntax error: the line with a caret under what is meant.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from everstream.errors import UserError


class AnnotationError(UserError):
    """Annotated code that cannot become a pipeline."""

    def __init__(self, file: str, line: int, shown: str, problem: str, fix: str) -> None:
        super().__init__(f"{file}, line {line}: {problem}\n{shown}\n{fix}")
        self.file = file
        self.line = line
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True)
class SourceFile:
    """The file that contains the annotated code."""

    file: str
    lines: Sequence[str]

    def problem(self, at: ast.AST, problem: str, fix: str) -> AnnotationError:
        """The error to raise about the node `at`."""
        line, column = getattr(at, "lineno", 1), getattr(at, "col_offset", 0)
        return AnnotationError(self.file, line, self._shown(at, line, column), problem, fix)

    def _shown(self, at: ast.AST, line: int, column: int) -> str:
        text = self.lines[line - 1].rstrip("\n") if line <= len(self.lines) else ""
        # Columns of a syntax tree count bytes.
        start = len(text.encode()[:column].decode(errors="replace"))
        end = start + 1
        if getattr(at, "end_lineno", None) == line:
            upto = text.encode()[: getattr(at, "end_col_offset", 0)]
            end = max(end, len(upto.decode(errors="replace")))
        elif getattr(at, "end_lineno", line) != line:
            end = len(text)
        margin = f"{line:>6} | "
        blank = " " * (len(margin) - 2) + "| "
        return f"{margin}{text}\n{blank}{' ' * start}{'^' * (end - start)}"
