"""The protocol of a simulated run, and how often it checkpoints under a seed."""

from dataclasses import replace
from typing import Final

from everstream.core.orders import Policy
from everstream.core.registry import named
from everstream.core.scheme import Scheme, scheme_of
from everstream.pipeline.checkpointing import KeptLog, Uncoordinated

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
