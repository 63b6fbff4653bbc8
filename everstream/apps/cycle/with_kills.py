"""Benchmarks of all applications with a kill each: what `make apps` runs."""

from collections.abc import Sequence

from everstream.apps.cycle.benchmarks import Benchmark
from everstream.apps.cycle.settings import Settings
from everstream.apps.inputs import input_folder
from everstream.apps.lookup import application_at
from everstream.pipeline.graph import Kind

PART_OF_ITEMS = 8
"""The kill comes when a shard has had this part of all items: early, with most work to come."""


def with_kills(
    applications: Sequence[str], size: str, interface: str = "everstream", every: str = "1s"
) -> list[Benchmark]:
    """One benchmark for each, whose first stage is killed once it has begun; inputs are made."""
    found = []
    for name in applications:
        application = application_at(name)
        folder = input_folder(application, size)
        items = len(application.items(folder))
        make = application.annotated if interface == "annotated" else application.pipeline
        graph = make(folder, folder / "parts", shards=2, batch=application.batch).graph
        first = graph.of_kind(Kind.OPERATOR)[0].name
        kill = f"{first}@{max(1, items // PART_OF_ITEMS)}"
        settings = Settings(kills=(kill,), every=every)
        found.append(Benchmark(f"{name}-{interface}", name, interface, size, settings))
    return found
