"""Benchmarks as files: a folder with one JSON each, which a user may read, edit and share.

A benchmark is an application, an interface, a class of input and settings. Besides those that were
made there is one without a file for every application and interface, called `prime-everstream`.

An execution consists of planned runs: each setting of a range, each repeat, one after the other.
"""

import difflib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from everstream.errors import UserError
from everstream.pipeline.graph import Kind, is_usable
from everstream_lab.apps.application import CLASSES
from everstream_lab.apps.catalogue import NAMES
from everstream_lab.apps.cycle.settings import Settings
from everstream_lab.apps.inputs import input_folder
from everstream_lab.apps.interfaces.registry import check_interface, interfaces
from everstream_lab.apps.interfaces.shape import AUTO, degrees_of
from everstream_lab.apps.lookup import application_at

FOLDER = "benchmarks"


@dataclass(frozen=True)
class Benchmark:
    """What is executed, and how."""

    name: str
    application: str
    """A name from the catalogue, or the path of a file."""
    interface: str = "everstream"
    size: str = "test"
    """The class of the input."""
    settings: Settings = field(default_factory=Settings)
    made: bool = True
    """Whether there is a file of it; if not, it is one of those that are always there."""

    def check(self) -> None:
        check_interface(self.interface)
        if self.size not in CLASSES:
            raise UserError(
                f"there is no class of inputs '{self.size}'; there are: {', '.join(CLASSES)}."
            )
        application = application_at(self.application)
        self.settings.check_all(self.interface)
        degrees_of(application, self.settings.stages, 1)


def home() -> Path:
    """Where benchmarks live: `$EVERSTREAM_BENCHMARKS`, or `benchmarks/` in the present folder."""
    return Path(os.environ.get("EVERSTREAM_BENCHMARKS") or FOLDER)


def ready_made() -> list[Benchmark]:
    """One for every application and interface."""
    return [
        Benchmark(f"{application}-{interface}", application, interface, made=False)
        for application in NAMES
        for interface in interfaces()
    ]


def made() -> list[Benchmark]:
    """Those that users have created, by name."""
    return [_read(path) for path in sorted(home().glob("*.json"))]


def find(name: str) -> Benchmark:
    """The benchmark of this name; an application's name alone means that of Everstream."""
    path = home() / f"{name}.json"
    if path.exists():
        return _read(path)
    there = {one.name: one for one in ready_made()}
    if name in there:
        return there[name]
    if name in NAMES:
        return there[f"{name}-everstream"]
    near = difflib.get_close_matches(name, [*there, *(one.name for one in made())], n=1)
    meant = f"did you mean '{near[0]}'?" if near else "'everstream apps list' shows all."
    raise UserError(f"there is no benchmark '{name}'; {meant}")


def save(benchmark: Benchmark, *, replacing: bool = False) -> Path:
    """Write it down. Its name must be free unless it replaces itself."""
    if not is_usable(benchmark.name):
        raise UserError(f"name {benchmark.name!r}: use letters, digits, '-', '_' and '.'.")
    benchmark.check()
    path = home() / f"{benchmark.name}.json"
    if path.exists() and not replacing:
        raise UserError(f"there is a benchmark '{benchmark.name}' already: {path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {
        "application": benchmark.application,
        "interface": benchmark.interface,
        "input": benchmark.size,
        "settings": benchmark.settings.to_json(),
    }
    path.write_text(json.dumps(body, indent=2) + "\n")
    return path


def rename(name: str, new: str) -> None:
    """Give a benchmark and its results another name."""
    benchmark = _one_that_was_made(name)
    save(replace(benchmark, name=new))
    (home() / f"{name}.json").unlink()
    if results_of(name).exists():
        results_of(name).rename(results_of(new))


def delete(name: str) -> None:
    """Delete a benchmark and its results; the file of an application of your own stays."""
    _one_that_was_made(name)
    (home() / f"{name}.json").unlink()
    shutil.rmtree(results_of(name), ignore_errors=True)


def results_of(name: str) -> Path:
    """The folder with all results of a benchmark."""
    return home() / "results" / name


def _one_that_was_made(name: str) -> Benchmark:
    benchmark = find(name)
    if not benchmark.made:
        raise UserError(f"'{name}' is always there, and has no file that could be changed.")
    return benchmark


def _read(path: Path) -> Benchmark:
    try:
        body = json.loads(path.read_text())
        return Benchmark(
            path.stem,
            body["application"],
            body["interface"],
            body["input"],
            Settings.from_json(body["settings"]),
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' is no benchmark any more ({type(error).__name__}: {error}): put it right, "
            "or delete it."
        ) from error


@dataclass(frozen=True)
class Planned:
    """One run, as it is handed to the process that performs it."""

    number: int
    benchmark: str
    application: str
    interface: str
    size: str
    workers: int
    batch: int
    repeat: int
    settings: Settings

    @property
    def driven(self) -> str:
        """The interface, and how its stages are spread if that was chosen."""
        shape = self.settings.stages
        return self.interface if shape == AUTO else f"{self.interface} ({shape})"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "Planned":
        return cls(**{**body, "settings": Settings.from_json(body["settings"])})


def plan(benchmark: Benchmark, first: int = 0) -> list[Planned]:
    """All runs of a benchmark. Repeats are outermost, so that a slow hour of the machine does not
    fall on one setting alone."""
    benchmark.check()
    settings = benchmark.settings
    usual = application_at(benchmark.application).batch
    # One worker is all a sequential program has, whatever the range says.
    counts = (1,) if benchmark.interface == "sequential" else settings.worker_counts()
    points = [(workers, batch) for workers in counts for batch in settings.batch_sizes(usual)]
    return [
        Planned(
            first + number,
            benchmark.name,
            benchmark.application,
            benchmark.interface,
            benchmark.size,
            workers,
            batch,
            repeat,
            settings,
        )
        for number, (repeat, (workers, batch)) in enumerate(
            (repeat, point) for repeat in range(settings.repeats) for point in points
        )
    ]


PART_OF_ITEMS = 8
"""The kill comes when a shard has had this part of all items: early, with most work to come."""


def with_kills(
    applications: Sequence[str], size: str, interface: str = "everstream", every: str = "1s"
) -> list[Benchmark]:
    """One benchmark for each, whose first stage is killed once it has begun; inputs are made."""
    benchmarks = []
    for name in applications:
        application = application_at(name)
        folder = input_folder(application, size)
        items = len(application.items(folder))
        make = application.annotated if interface == "annotated" else application.pipeline
        graph = make(folder, folder / "parts", shards=2, batch=application.batch).graph
        first = graph.of_kind(Kind.OPERATOR)[0].name
        kill = f"{first}@{max(1, items // PART_OF_ITEMS)}"
        settings = Settings(kills=(kill,), every=every)
        benchmarks.append(Benchmark(f"{name}-{interface}", name, interface, size, settings))
    return benchmarks
