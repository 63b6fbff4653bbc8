"""`everstream help`: the pages of the documentation, in the terminal.

The wheel carries the pages of docs/ in `everstream/guides`; in a checkout they are read from docs/ itself.
A topic is the name of a page. Pages that share a name have their folder in front: `connectors/kafka`.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from everstream.cli.say import errors_in_one_line
from everstream.errors import UserError

PACKAGE = Path(__file__).parents[1]
PLACES = (PACKAGE / "guides", PACKAGE.parent / "docs")
"""Where the pages are: in an installed package, in a checkout."""
NOT_SHOWN = re.compile(r"\A---\n.*?\n---\n\s*|<!--.*?-->\n*", re.DOTALL)
"""What a page says to other programs: its front matter, and comments."""
NOT_LISTED = ("decisions",)
"""Folders with pages about the project itself."""


def register(app: typer.Typer) -> None:
    app.command("help")(help)


def help(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Name of a guide, such as protocols.")
    ] = None,
) -> None:
    """Read a guide in the terminal, or list all guides.

    If standard output is not a terminal, the guide is printed as Markdown. For the options of a
    command use --help.

    Example: everstream help protocols

    Exit codes: 0 shown; 2 there is no such guide.
    """
    console = Console()
    with errors_in_one_line():
        topics = topics_in(PLACES)
        if topic is None:
            console.print(_listed(topics))
            console.print("Read one: everstream help TOPIC", highlight=False)
            return
        page = topics.get(topic.lower().removesuffix(".md"))
        if page is None:
            raise UserError(_unknown(topic, topics, commands_of(context)))
        text = shown(page)
    if console.is_terminal:
        console.print(Markdown(text, hyperlinks=False))
    else:
        typer.echo(text, nl=False)


def topics_in(places: Iterable[Path]) -> dict[str, Path]:
    """Topic -> its page, from the first of these places that exists."""
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise UserError("this installation has no guides: install the wheel, or use a checkout.")
    pages = [page for page in sorted(folder.rglob("*.md")) if _is_guide(page, folder)]
    count = Counter(page.stem for page in pages)
    return {
        page.stem if count[page.stem] == 1 else _with_folder(page, folder): page for page in pages
    }


def _is_guide(page: Path, folder: Path) -> bool:
    inside = page.relative_to(folder)
    return page.stem != "index" and not set(inside.parts) & set(NOT_LISTED)


def shown(page: Path) -> str:
    """The text of a page, as a reader wants it."""
    return NOT_SHOWN.sub("", page.read_text(encoding="utf-8"))


def _with_folder(page: Path, folder: Path) -> str:
    """The name of a page that others have, too; at the top there is no folder to name."""
    return page.stem if page.parent == folder else f"{page.parent.name}/{page.stem}"


def commands_of(context: typer.Context) -> list[str]:
    root = context.find_root()
    listed = getattr(root.command, "list_commands", None)
    return list(listed(root)) if listed is not None else []


def _unknown(topic: str, topics: Mapping[str, Path], commands: Iterable[str]) -> str:
    if topic in commands:
        return f"there is no guide '{topic}', but a command: everstream {topic} --help"
    same_name = sorted(known for known in topics if known.endswith(f"/{topic.lower()}"))
    near = same_name or difflib.get_close_matches(topic.lower(), topics, 3)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no guide '{topic}'.{meant} 'everstream help' lists all guides."


def _listed(topics: Mapping[str, Path]) -> Table:
    table = Table("topic", "title", box=None, pad_edge=False)
    for topic, page in sorted(topics.items(), key=lambda one: (one[1].parent, one[0])):
        table.add_row(topic, escape(_title(page)))
    return table


def _title(page: Path) -> str:
    lines = page.read_text(encoding="utf-8").splitlines()
    return next((line[2:].strip() for line in lines if line.startswith("# ")), page.stem)
