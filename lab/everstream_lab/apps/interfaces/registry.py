"""All interfaces by name, and what each of them can do."""

import difflib

from everstream.errors import UserError
from everstream_lab.apps.interfaces.engine import annotated, everstream
from everstream_lab.apps.interfaces.job import Driver
from everstream_lab.apps.interfaces.plain_spark import plain_spark
from everstream_lab.apps.interfaces.pools import processes, sequential, threads

DRIVERS: dict[str, Driver] = {
    "sequential": sequential,
    "threads": threads,
    "processes": processes,
    "everstream": everstream,
    "annotated": annotated,
    "pyspark": plain_spark,
}
INTERFACES = tuple(DRIVERS)
WITH_CHECKPOINTS = {"everstream", "annotated"}
"""Those that take checkpoints and survive kills."""


def driver_of(interface: str) -> Driver:
    """The driver of this name; a UserError names the one that was meant."""
    check_interface(interface)
    return DRIVERS[interface]


def check_interface(interface: str) -> None:
    if interface not in DRIVERS:
        near = difflib.get_close_matches(interface, INTERFACES, n=1)
        meant = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(INTERFACES)}."
        raise UserError(f"there is no interface '{interface}'; {meant}")
