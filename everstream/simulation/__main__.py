"""Replays one simulated run: `python -m everstream.simulation SEED [--protocol NAME] [--trace]`."""

from dataclasses import replace
from typing import Annotated, get_args

import typer

from everstream.core.registry import PROTOCOLS
from everstream.errors import GraphError, UserError
from everstream.pipeline.checkpointing import KeptLog
from everstream.simulation.faults import NO_FAULTS, STORM, Faults
from everstream.simulation.happenings import History
from everstream.simulation.shapes import shape_for
from everstream.simulation.storm import has_cycle, policy_for, scheme_for
from everstream.simulation.world import World

app = typer.Typer(add_completion=False)


@app.command()
def replay(
    seed: Annotated[int, typer.Argument(help="Determines shape, faults and timing of the run.")],
    trace: Annotated[bool, typer.Option(help="Show every event as it happens.")] = False,
    faults: Annotated[bool, typer.Option(help="Inject faults.")] = True,
    protocol: Annotated[str, typer.Option(help=f"One of {', '.join(PROTOCOLS)}.")] = "aligned",
    log: Annotated[str, typer.Option(help="Where logs are kept: durable or memory.")] = "durable",
    cycles: Annotated[bool, typer.Option(help="A shape with a feedback edge.")] = False,
    spares: Annotated[int, typer.Option(min=0, help="Number of spare processes.")] = 0,
    takeovers: Annotated[
        int, typer.Option(min=0, help="How often a standby takes over, at most.")
    ] = 0,
    storm: Annotated[
        bool, typer.Option(help="Inject every kind of fault at once, as in `everstream simulate`.")
    ] = False,
) -> None:
    """Simulate one run in virtual time and report whether its output was correct.

    The same seed always gives the same run, so you can look at a seed that failed in a test:

        python -m everstream.simulation 4711 --trace
        python -m everstream.simulation 4711 --protocol hmnr --cycles --trace
        python -m everstream.simulation 4711 --protocol hmnr --storm --trace

    Ends with exit code 1 if the run was not correct.
    """
    if log not in get_args(KeptLog):
        raise typer.BadParameter(f"{log!r} is neither durable nor memory")
    try:
        scheme = scheme_for(protocol, seed, log=log)  # type: ignore[arg-type]
    except UserError as error:
        raise typer.BadParameter(error.message) from error
    chosen = replace((STORM if storm else Faults()) if faults else NO_FAULTS, takeovers=takeovers)
    shape = shape_for(seed, cycles=cycles or (storm and has_cycle(protocol, seed)), clocks=storm)
    world = World(seed, shape, chosen, scheme, policy_for(protocol), spares=spares)
    try:
        scheme.check(world.plan)
    except GraphError as error:
        raise typer.BadParameter(error.message) from error
    if trace:
        world.watchers.append(lambda text: typer.echo(f"{world.scheduler.now_s:8.4f} {text}"))
    history = world.run()
    typer.echo("\n".join(described(history, world)))
    raise typer.Exit(0 if history.right else 1)


def described(history: History, world: World) -> list[str]:
    """Shape, faults, notes and verdict, line by line."""
    shards = ", ".join(f"{chain.name} x{chain.shards}" for chain in world.plan.chains.values())
    outcome = history.outcome.value if history.outcome is not None else "not ended"
    verdict = "right" if history.right else "WRONG"
    return [
        f"seed {history.seed}: shape {history.shape} ({shards}) on {len(world.plan.workers)} worker(s)",
        "faults:",
        *(f"  {line}" for line in history.faults or ["none"]),
        "notes:",
        *(f"  {line}" for line in history.notes or ["none"]),
        f"{outcome} after {history.virtual_s:.3f} virtual s and {history.steps} steps, "
        f"{history.epochs} epochs, {history.recoveries} recoveries",
        f"lost {history.lost}, duplicated {history.duplicated}"
        + (f", {history.lost_frames} frames known to be lost" if history.lost_frames else ""),
        *(f"violated: {line}" for line in history.violations),
        f"verdict: {verdict}",
    ]


if __name__ == "__main__":
    app(prog_name="python -m everstream.simulation")
