"""All interfaces by name, and what each of them can do: ours, and those of plug-ins."""

import difflib
from importlib.metadata import EntryPoint, entry_points

from everstream.errors import UserError
from everstream_lab.apps.interfaces.engine import annotated, everstream
from everstream_lab.apps.interfaces.futures import Futures
from everstream_lab.apps.interfaces.job import Driver
from everstream_lab.apps.interfaces.plain_spark import plain_spark
from everstream_lab.apps.interfaces.plugin import Interface
from everstream_lab.apps.interfaces.pools import processes, sequential, threads

GROUP = "everstream_lab.interfaces"
DRIVERS: dict[str, Driver] = {
    "sequential": sequential,
    "threads": threads,
    "processes": processes,
    "futures": lambda job: Futures().run(job),
    "everstream": everstream,
    "annotated": annotated,
    "pyspark": plain_spark,
}
WITH_CHECKPOINTS = {"everstream", "annotated"}
"""Those of ours that take checkpoints and survive kills."""


def plugins() -> dict[str, EntryPoint]:
    """The interfaces that other packages bring, by name; ours keep their names."""
    return {one.name: one for one in entry_points(group=GROUP) if one.name not in DRIVERS}


def interfaces() -> tuple[str, ...]:
    """The names of all."""
    return (*DRIVERS, *plugins())


def driver_of(interface: str) -> Driver:
    """The driver of this name; a UserError names the one that was meant."""
    check_interface(interface)
    if interface in DRIVERS:
        return DRIVERS[interface]
    kind = _class_of(interface)
    return lambda job: kind().run(job)


def survives_kills(interface: str) -> bool:
    """Whether it takes checkpoints, so that a run may be killed."""
    if interface in DRIVERS:
        return interface in WITH_CHECKPOINTS
    return _class_of(interface).survives_kills


def check_interface(interface: str) -> None:
    known = interfaces()
    if interface not in known:
        near = difflib.get_close_matches(interface, known, n=1)
        meant = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known)}."
        raise UserError(f"there is no interface '{interface}'; {meant}")


def _class_of(interface: str) -> type[Interface]:
    entry = plugins()[interface]
    try:
        kind = entry.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the interface '{interface}' cannot be loaded from '{entry.value}': {error}. Install "
            "what it needs, or remove its package."
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Interface)):
        raise UserError(
            f"the interface '{interface}' is '{entry.value}', which is no class made from "
            "everstream_lab.apps.interfaces.plugin.Interface."
        )
    return kind
