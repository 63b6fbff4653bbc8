"""Packages that only some commands and calls need, and how to install a missing one.

`pip install everstream` leaves them out; each has an extra in `pyproject.toml`. Import such a
package inside a `with extra(...)` block, so that users without it get the install command instead
of a traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from everstream.errors import MissingExtra


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import packages of `pip install 'everstream[name]'` in this block."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"this needs the package {error.name}, which is not installed: "
            f"pip install 'everstream[{name}]' (on every machine that runs it)."
        ) from error
