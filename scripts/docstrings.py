"""Makes Markdown of our docstrings, which are written to be read as they stand.

An extension of the reference's generator (see mkdocs.yml). Two things need help: an example, since
Markdown takes `>>>` for a quotation, and a list of parameters, which it would run together.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1(?!\s*$).+)*", re.MULTILINE)
"""A line that starts with `>>>` and what follows it, up to the next empty line."""
PARAMETER = re.compile(r"^([a-z_]+(?:, [a-z_]+)*): ")
"""`name: what it is for`; continuation lines are indented."""


def as_markdown(text: str) -> str:
    """A docstring with its examples between fences and its parameters as a list."""
    paragraphs = EXAMPLE.sub(_fence, text).split("\n\n")
    return "\n\n".join(map(_list, paragraphs))


def _fence(found: re.Match[str]) -> str:
    lines = [line.removeprefix(found[1]) for line in found[0].splitlines()]
    return "\n".join(["```pycon", *lines, "```"])


def _list(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if not all(PARAMETER.match(line) or line.startswith("    ") for line in lines):
        return paragraph
    if not lines or lines[0].startswith(" "):
        return paragraph
    return "\n".join(PARAMETER.sub(r"- **\1**: ", line) for line in lines)


class AsMarkdown(griffe.Extension):
    """Rewrites every docstring before the page is made."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
