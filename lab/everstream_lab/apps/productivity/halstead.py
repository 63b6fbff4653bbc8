"""Lines of code and Halstead's measures of a Python program, counted from its tokens.

The rules are those of ResiPipe's tables, written for C++ and read for Python. Operands are
identifiers (types among them) and constants; operators are keywords, symbols, one for each pair of
brackets, and the end of a statement, which C++ writes as `;`. A colon opens a block, so the
indentation after it does not count again. Comments, blank lines and docstrings are not code.
"""

import ast
import io
import keyword
import math
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from tokenize import TokenInfo

DISCRIMINATIONS_PER_S = 18
"""What a head decides in a second: effort divided by it is time."""
CONSTANTS = {"True", "False", "None", "..."}
PAIRS = {"(": "()", "[": "[]", "{": "{}"}
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
# From Python 3.12 on an f-string is many tokens; here it is one constant, as it was before.
_FSTRING_START = getattr(tokenize, "FSTRING_START", -1)
_FSTRING_END = getattr(tokenize, "FSTRING_END", -1)


@dataclass(frozen=True)
class Halstead:
    """The counts of a program, and what follows from them."""

    lines: int
    """Physical lines with code on them."""
    distinct_operators: int
    distinct_operands: int
    operators: int
    operands: int

    @property
    def vocabulary(self) -> int:
        return self.distinct_operators + self.distinct_operands

    @property
    def length(self) -> int:
        return self.operators + self.operands

    @property
    def volume(self) -> float:
        return self.length * math.log2(self.vocabulary) if self.vocabulary else 0.0

    @property
    def difficulty(self) -> float:
        if not self.distinct_operands:
            return 0.0
        return self.distinct_operators / 2 * self.operands / self.distinct_operands

    @property
    def effort(self) -> float:
        return self.difficulty * self.volume

    @property
    def hours(self) -> float:
        return self.effort / DISCRIMINATIONS_PER_S / 3600


def count(source: str) -> Halstead:
    """Measure the text of a program.

    >>> counted = count("area = width * height  # of a room")
    >>> counted.lines, counted.operators, counted.operands
    (1, 3, 3)
    """
    operators: Counter[str] = Counter()
    operands: Counter[str] = Counter()
    lines: set[int] = set()
    for token in _code(source):
        lines.update(range(token.start[0], token.end[0] + 1))
        if token.type == tokenize.NEWLINE:
            operators[";"] += 1
        elif token.type == tokenize.OP and token.string not in CONSTANTS:
            if token.string not in ")]}":
                operators[PAIRS.get(token.string, token.string)] += 1
        elif keyword.iskeyword(token.string) and token.string not in CONSTANTS:
            operators[token.string] += 1
        else:
            operands[token.string] += 1
    return Halstead(len(lines), len(operators), len(operands), operators.total(), operands.total())


def _code(source: str) -> Iterator[TokenInfo]:
    """The tokens that count, f-strings in one piece."""
    documents = _docstring_lines(source)
    text = source.splitlines(keepends=True)
    opened: list[TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.start[0] in documents or token.type in _NO_CODE:
            continue
        # At the end of a file without a newline the tokenizer makes one up: an end all the same.
        if token.type == _FSTRING_START:
            opened.append(token)
        elif token.type == _FSTRING_END:
            first = opened.pop()
            if not opened:
                whole = _between(text, first.start, token.end)
                yield TokenInfo(tokenize.STRING, whole, first.start, token.end, first.line)
        elif not opened:
            yield token


def _docstring_lines(source: str) -> set[int]:
    """Where strings stand that are statements of their own: docstrings of all kinds."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value
            if isinstance(value.value, str):
                lines.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return lines


def _between(text: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return text[start[0] - 1][start[1] : end[1]]
    inner = text[start[0] : end[0] - 1]
    return "".join([text[start[0] - 1][start[1] :], *inner, text[end[0] - 1][: end[1]]])
