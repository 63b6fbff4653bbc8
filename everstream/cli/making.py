"""Shows how far something is that is being made, on the error output, and leaves nothing behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def making_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to be told how many of how many are done; it shows nothing until then."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)
