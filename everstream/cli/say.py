"""What all commands print in the same way, and their exit codes."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from everstream.errors import EverstreamError, InternalError, UserError

OK, FAILED, USAGE, TIMED_OUT, KILLED = 0, 1, 2, 124, 130
console = Console()
errors = Console(stderr=True)


def say(text: str, to: Console = console) -> None:
    """Print a text as it is: without markup, highlights and line breaks."""
    to.print(text, markup=False, highlight=False, soft_wrap=True)


def say_error(text: str) -> None:
    first, _, rest = text.partition("\n")
    errors.print(
        f"[bold red]everstream:[/bold red] {escape(first)}", highlight=False, soft_wrap=True
    )
    if rest:
        say(rest, errors)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """An error in this block is reported, and ends the command with its exit code; a bug has a traceback."""
    try:
        yield
    except InternalError:
        raise
    except EverstreamError as error:
        say_error(str(error))
        raise typer.Exit(USAGE if isinstance(error, UserError) else FAILED) from None


def in_words(size_bytes: float) -> str:
    size, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
