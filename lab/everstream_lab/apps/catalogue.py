"""All applications by name; each is loaded when it is asked for, with the libraries it needs."""

import difflib
from importlib import import_module

from everstream.errors import UserError
from everstream_lab.apps.application import Application

NAMES = (
    *("prime", "mandelbrot", "compress", "decompress", "eye", "sentiment", "lane", "face"),
    "ferret",
)


def find(name: str) -> Application:
    """The application of this name; a UserError names the one that was meant."""
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        meant = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(NAMES)}."
        raise UserError(f"there is no application '{name}'; {meant}")
    application: Application = import_module(f"everstream_lab.apps.{name}").APPLICATION
    return application


def applications() -> list[Application]:
    """All of them, in the order in which they are listed."""
    return [find(name) for name in NAMES]
