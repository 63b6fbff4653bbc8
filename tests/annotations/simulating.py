"""Runs annotated programs in virtual time, with crashes and broken disks, and writes new ones."""

import linecache
from pathlib import Path
from typing import Any

from everstream.annotations import AnnotatedFunction, AnnotatedPipeline
from everstream.core.orders import Outcome
from everstream.engine.result import RunResult
from everstream.pipeline.graph import Kind
from everstream.pipeline.sink import Sink
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.workers import SimulatedWorker
from everstream.simulation.world import World
from tests.docs.simulated import Given

HEAD = "import everstream as es\n"


def simulated(
    pipeline: AnnotatedPipeline, folder: Path, seed: int = 0, faults: bool = True
) -> RunResult:
    """Run to the end in virtual time; sinks are the real ones, in this folder.

    Without objects that rot: if both copies do, a run is refused, and has nothing to compare.
    """
    url = str(folder.absolute())
    sinks = [(n.name, n.what) for n in pipeline.graph.of_kind(Kind.SINK)]
    for name, sink in sinks:
        assert isinstance(sink, Sink)
        sink.start_fresh(pipeline.name, name, url, True)
    before, SimulatedWorker.store_url = SimulatedWorker.store_url, url
    try:
        shape = Given(pipeline.name, 3, lambda pipeline, world: None, dict, given=pipeline)
        world = World(seed, shape, Faults(rotten_objects=0) if faults else NO_FAULTS)
        history = world.run()
    finally:
        SimulatedWorker.store_url = before
    assert history.outcome is Outcome.FINISHED, f"seed {seed}: {history.notes[-3:]}"
    outputs: dict[str, Any] = {}
    for name, sink in sinks:
        assert isinstance(sink, Sink)
        outputs[name] = sink.results(pipeline.name, name, url)
    result = RunResult(
        pipeline.name, history.outcome, 0.0, 0.0, {}, (), tuple(outputs), outputs=outputs
    )
    pipeline.ended(result)
    return result


def module_of(text: str, name: str = "program", **given: Any) -> dict[str, Any]:
    """The names that a program defines; Python can look its lines up, as if it were in a file."""
    file = f"<{name}>"
    lines = (HEAD + text).splitlines(keepends=True)
    linecache.cache[file] = (len(HEAD + text), None, lines, file)
    names: dict[str, Any] = {"__name__": name, **given}
    exec(compile(HEAD + text, file, "exec"), names)
    return names


def function_of(text: str, name: str = "program", **given: Any) -> AnnotatedFunction[..., Any]:
    """The annotated function `main` of a program."""
    function: AnnotatedFunction[..., Any] = module_of(text, name, **given)["main"]
    return function
