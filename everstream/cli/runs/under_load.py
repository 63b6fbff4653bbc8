"""`everstream run --load`: paces the sources of any pipeline with a load pattern."""

import difflib
from typing import Any

from everstream.connectors.generate.load import PATTERNS, Load
from everstream.connectors.generate.paced import Paced
from everstream.errors import UserError
from everstream.pipeline.graph import Kind
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline

ALL = ""


def loads_of(texts: tuple[str, ...], calibrate: str | None) -> dict[str, Load]:
    """Source -> its load, from `PATTERN` (for all of them) and `SOURCE=PATTERN`."""
    loads: dict[str, Load] = {}
    for text in texts:
        source, _, load = text.rpartition("=")
        if calibrate is not None:
            name: Any = load
            if load not in PATTERNS:
                raise UserError(
                    f"--load {text} with --calibrate: give the name of a pattern alone, one of "
                    f"{', '.join(PATTERNS)}."
                )
            loads[source] = Load.calibrated(name, calibrate)
        elif load in PATTERNS:
            raise UserError(
                f"--load {text}: say period, min and max, as in {load},10s,100,1000; or let "
                "--calibrate find them from a run at full speed."
            )
        else:
            loads[source] = Load.parse(load)
    if calibrate is not None and not loads:
        raise UserError("--calibrate needs a pattern: --load wave --calibrate RUN.json.")
    return loads


def put_under_load(pipeline: Pipeline, loads: dict[str, Load], catch_up: bool) -> None:
    """Pace the sources of this pipeline; replaces the pace of one that already has one."""
    nodes = {node.name: node for node in pipeline.graph.of_kind(Kind.SOURCE)}
    for name in loads.keys() - nodes.keys() - {ALL}:
        near = difflib.get_close_matches(name, nodes, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise UserError(f"--load {name}=...: there is no source '{name}'.{meant}")
    for name, node in nodes.items():
        load = loads.get(name, loads.get(ALL))
        if load is not None:
            assert isinstance(node.what, Source)
            node.what = Paced.around(node.what, load, catch_up)
