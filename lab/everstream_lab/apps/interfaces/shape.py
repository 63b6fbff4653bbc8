"""How the stages of an application are spread: one farm, or a farm per stage, each with a degree.

In one farm every worker takes an item through all stages. In a pipeline of farms each stage has
its workers, and items pass from one farm to the next: nothing is merged, so that a stage can
have as many workers as it needs. Where results keep the order of the source, a collector with one
shard is between two farms of a pipeline, as in FastFlow's ordered farms.
"""

from collections.abc import Mapping
from dataclasses import replace

from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Edge, Graph, Kind, Node, OnDemand
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream_lab.apps.application import Application
from everstream_lab.apps.interfaces.job import stage_names

AUTO, FARM, PIPELINE = "auto", "farm", "pipeline"


def read_degrees(text: str) -> tuple[int, ...]:
    """Numbers as in 2,1,3; empty for a word.

    >>> read_degrees("2,1,3"), read_degrees("farm")
    ((2, 1, 3), ())
    """
    if text in (AUTO, FARM, PIPELINE):
        return ()
    try:
        degrees = tuple(int(part) for part in text.split(","))
    except ValueError:
        degrees = ()
    if not degrees or min(degrees) < 1:
        raise UserError(
            f"stages={text}: write {AUTO}, {FARM}, {PIPELINE}, or the workers of each stage, as in "
            "2,1,3."
        )
    return degrees


def degrees_of(application: Application, shape: str, workers: int) -> tuple[int, ...]:
    """The workers of each stage in a pipeline of farms; empty for one farm."""
    degrees = read_degrees(shape)
    names = stage_names(application)
    if shape == PIPELINE:
        return (workers,) * len(names)
    if degrees and len(degrees) != len(names):
        raise UserError(
            f"stages={shape}: {application.name} has {len(names)} stage(s), {', '.join(names)}: "
            "give one number for each."
        )
    return degrees


def check_shape(shape: str, interface: str) -> None:
    """Raise a UserError for an interface whose stages cannot be spread so."""
    read_degrees(shape)
    fixed = {
        "sequential": "a sequential program has one worker",
        "annotated": "the stages of annotated code are those of its annotations",
        "pyspark": "all stages of plain Spark are in one job",
    }
    if shape != AUTO and interface in fixed:
        raise UserError(f"stages={shape}: {fixed[interface]}. Drop it for '{interface}'.")


def shaped(pipeline: Pipeline, application: Application, shape: str, workers: int) -> Pipeline:
    """A copy of a pipeline with its stages fused into one farm, or with a farm for each."""
    if shape == AUTO:
        return pipeline
    degrees = degrees_of(application, shape, workers) or (workers,) * len(application.stages)
    shards = dict(zip(stage_names(application), degrees, strict=True))
    missing = shards.keys() - pipeline.graph.nodes.keys()
    if missing:
        raise UserError(
            f"stages={shape}: the pipeline of {application.name} has no operator "
            f"{', '.join(sorted(missing))}: name operators as the functions of the stages."
        )
    nodes = {
        name: replace(pipeline.graph.nodes[name], shards=count) for name, count in shards.items()
    }
    changed = pipeline.with_nodes(nodes)
    changed.graph = _joined(changed.graph, shards, fused=shape == FARM)
    return changed


class Collector(Operator):
    """Between two farms of an ordered pipeline: hands batches on in the order of the source."""

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        ctx.emit_batch(batch)


def _joined(graph: Graph, shards: Mapping[str, int], *, fused: bool) -> Graph:
    """The graph with its stages in one chain; or apart, with a collector where order has to be kept."""
    nodes, edges = dict(graph.nodes), []
    keeps_order = any(node.ordered for node in nodes.values())
    for edge in graph.edges:
        between = edge.sender in shards and edge.receiver in shards
        if not between or not isinstance(edge.routing, OnDemand):
            edges.append(edge)
        elif fused or not keeps_order or shards[edge.sender] == 1:
            edges.append(replace(edge, routing=OnDemand(fusable=fused)))
        else:
            name = f"{edge.sender}-collected"
            nodes[name] = Node(name, Kind.OPERATOR, Collector(), shards=1, ordered=True)
            edges.append(Edge(edge.sender, name, OnDemand(fusable=False)))
            edges.append(replace(edge, sender=name, routing=OnDemand(fusable=False)))
    return Graph(graph.name, nodes, edges)
