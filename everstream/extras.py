"""Packages that only some commands and calls need, and how to get one that is missing.

`pip install everstream` leaves them out; each has an extra in `pyproject.toml`. An import of one
stands in a `with extra(...)` block, so that whoever comes to it without the package is told what
to install instead of being shown a traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from everstream.errors import MissingExtra


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import in here what `pip install 'everstream[name]'` brings along."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"this needs the package {error.name}, which is not installed: "
            f"pip install 'everstream[{name}]' (on every machine that runs it)."
        ) from error
