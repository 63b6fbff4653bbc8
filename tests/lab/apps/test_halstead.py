"""The counter of lines and tokens, against programs counted by hand."""

import math

import pytest

from everstream_lab.apps.productivity.halstead import count
from everstream_lab.apps.productivity.program import program_of
from everstream_lab.apps.productivity.published import HOURS, LINES

IS_PRIME = '''
def is_prime(n):
    """Brute force."""

    for d in range(2, n):  # all of them
        if n % d == 0:
            return False
    return n > 1
'''
# operators: def () : ; | for in () , : ; | if % == : ; | return ; | return > ;
# operands: is_prime n | d range 2 n | n d 0 | False | n 1

GREET = '''
"""A module."""
import sys

names = [
    "ann",
    "bob",
]
for name in names:
    print(f"hello {name}", file=sys.stdout)
'''
# operators: import ; | = [] , , ; | for in : ; | () , = . ;
# operands: sys | names "ann" "bob" | name names | print f"..." file sys stdout


def test_a_function_counted_by_hand() -> None:
    found = count(IS_PRIME)
    assert (found.lines, found.operators, found.operands) == (5, 20, 12)
    assert (found.distinct_operators, found.distinct_operands) == (12, 8)
    assert found.volume == pytest.approx(32 * math.log2(20))
    assert found.difficulty == pytest.approx(12 / 2 * 12 / 8)
    assert found.effort == pytest.approx(9 * 32 * math.log2(20))
    assert found.hours == pytest.approx(9 * 32 * math.log2(20) / 18 / 3600)


def test_a_script_counted_by_hand() -> None:
    found = count(GREET)
    # f"hello {name}" is one constant, a list over four lines is four lines.
    assert (found.lines, found.operators, found.operands) == (7, 16, 11)
    assert (found.distinct_operators, found.distinct_operands) == (10, 9)


def test_nothing_is_no_effort() -> None:
    found = count('"""Only a docstring."""\n\n# and a comment\n')
    assert (found.lines, found.length, found.effort, found.hours) == (0, 0, 0.0, 0.0)


def test_a_program_is_what_its_entry_needs_and_nothing_else() -> None:
    module = (
        "import os, sys\n"
        "from math import pi, tau\n"
        "LIMIT = 5\n"
        "def stage(n):\n    return n * pi < LIMIT\n"
        "def plain():\n    return [stage(n) for n in range(LIMIT)]\n"
        "@staticmethod\ndef piped():\n    return stage, sys.argv\n"
    )
    plain = program_of(module, ["plain"])
    assert plain.splitlines() == [
        "from math import pi",
        "LIMIT = 5",
        "def stage(n):",
        "    return n * pi < LIMIT",
        "def plain():",
        "    return [stage(n) for n in range(LIMIT)]",
    ]
    piped = program_of(module, ["piped"])
    assert "import sys" in piped.splitlines() and "@staticmethod" in piped
    assert "plain" not in piped and "os" not in piped
    with pytest.raises(LookupError, match="no other"):
        program_of(module, ["other"])


def test_the_published_tables_are_whole() -> None:
    for interface, lines in LINES.items():
        assert lines.keys() == HOURS[interface].keys()
    assert LINES["ResiPipe"]["sentiment"] == 120 and HOURS["MPI"]["compress"] == 13.46
