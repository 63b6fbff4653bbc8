"""One name for one thing: no class name is defined twice in the library."""

import ast
from collections import Counter
from pathlib import Path
from typing import Final

import everstream

PRIVATE: Final = {"_Collector", "_Reading", "_Rows", "_Run"}
"""Helpers of one module each, in different packages: nobody imports them."""


def defined_twice() -> set[str]:
    modules = Path(everstream.__file__).parent.rglob("*.py")
    names = Counter(
        node.name
        for path in modules
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    return {name for name, times in names.items() if times > 1}


def test_a_class_name_is_defined_once() -> None:
    assert defined_twice() - PRIVATE == set()


def test_no_exception_is_left_over() -> None:
    assert PRIVATE - defined_twice() == set()
