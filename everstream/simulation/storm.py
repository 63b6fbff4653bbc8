"""Runs with every kind of fault at once, seed after seed, under any protocol.

A seed is exact (the output is what the protocol guarantees), refused (data that the run needs is
damaged beyond repair, and it stopped and reported that) or wrong. Half of the seeds have a pipeline
with a cycle, where the protocol allows one.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal, TypeAlias, get_args

from everstream.core.orders import Policy
from everstream.core.registry import named
from everstream.core.scheme import Scheme, scheme_of
from everstream.pipeline.checkpointing import KeptLog, Uncoordinated
from everstream.simulation.faults import STORM, Faults
from everstream.simulation.happenings import History
from everstream.simulation.shapes import shape_for
from everstream.simulation.world import World

INTERVALS_S: Final = (0.01, 0.03, 0.08)
JITTER: Final = 0.3


def scheme_for(protocol: str, seed: int, *, log: KeptLog = "durable") -> Scheme:
    """The protocol of this name; its shards' timers follow from the seed."""
    choice = named(protocol).choice
    if isinstance(choice, Uncoordinated):
        every_s = INTERVALS_S[seed % len(INTERVALS_S)]
        choice = replace(choice, every=every_s, jitter=JITTER, log=log)
    return scheme_of(choice)


def policy_for(protocol: str) -> Policy | None:
    """Without checkpoints, no interval; otherwise the seed determines it."""
    if named(protocol).choice is None:
        return Policy(checkpoints=False, max_restarts=1000)
    return None


Verdict: TypeAlias = Literal["exact", "refused", "wrong"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def has_cycle(protocol: str, seed: int) -> bool:
    return named(protocol).cycles and seed % 2 == 1


def world_in_storm(protocol: str, seed: int, faults: Faults = STORM) -> World:
    shape = shape_for(seed, cycles=has_cycle(protocol, seed), clocks=True)
    return World(seed, shape, faults, scheme_for(protocol, seed), policy_for(protocol))


def verdict_on(history: History) -> Verdict:
    if not history.right:
        return "wrong"
    return "refused" if history.refused else "exact"


def histories(protocol: str, seeds: range, faults: Faults = STORM) -> Iterator[History]:
    for seed in seeds:
        yield world_in_storm(protocol, seed, faults).run()


def replay_command(protocol: str, seed: int) -> str:
    """The command that shows one of these runs, event by event."""
    return f"python -m everstream.simulation {seed} --protocol {protocol} --storm --trace"
