"""The registry of checkpoint protocols, each under the name that is used everywhere.

The command line, Python, the simulator, the benchmarks and the adviser all take the names and their
properties from here. To add a protocol, add a line.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from everstream.core.protocols.aligned import Aligned
from everstream.core.protocols.at_least_once import AtLeastOnce
from everstream.core.protocols.base import NoCheckpoints, ShardProtocol
from everstream.core.protocols.induced import BCS, HMNR
from everstream.core.protocols.unaligned import Unaligned
from everstream.core.protocols.uncoordinated import UncoordinatedProtocol
from everstream.errors import UserError
from everstream.pipeline import checkpointing
from everstream.pipeline.checkpointing import (
    PROTOCOL_WORDS,
    Checkpointing,
    CommunicationInduced,
    Coordinated,
)


@dataclass(frozen=True)
class Protocol:
    """One way to checkpoint: its name, the user's choice that selects it, and its properties."""

    name: str
    shard: Callable[..., ShardProtocol]
    """Makes the protocol object of one shard."""
    says: str
    """What it does, in a few words."""
    cycles: bool = True
    """Works on graphs with feedback."""
    exactly_once: bool = True

    @property
    def choice(self) -> Checkpointing | None:
        """What a user writes in Python, with every setting at its default."""
        return PROTOCOL_WORDS[self.name]

    @property
    def logs(self) -> bool:
        """Senders log what they send, so that only the affected shards roll back."""
        return isinstance(self.choice, checkpointing.Uncoordinated)

    @property
    def in_python(self) -> str:
        match self.choice:
            case None:
                return "None"
            case Coordinated(mode=mode):
                return f'es.Coordinated(mode="{mode}")'
            case CommunicationInduced(rule=rule):
                return f'es.CommunicationInduced(rule="{rule}")'
            case checkpointing.Uncoordinated():
                return "es.Uncoordinated()"


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol("aligned", Aligned, "all together, inputs wait for markers", cycles=False),
        Protocol("unaligned", Unaligned, "all together, markers overtake the records"),
        Protocol(
            "at-least-once",
            AtLeastOnce,
            "all together, nothing waits, after a failure some records count twice",
            cycles=False,
            exactly_once=False,
        ),
        Protocol(
            "uncoordinated",
            UncoordinatedProtocol,
            "each shard on its own timer, only affected shards roll back",
        ),
        Protocol("hmnr", HMNR, "as uncoordinated, safe on cycles"),
        Protocol("bcs", BCS, "as hmnr, with less sent along and more checkpoints forced"),
        Protocol("none", NoCheckpoints, "no checkpoints, a failure starts the run over"),
    )
}


def named(word: str) -> Protocol:
    if word not in PROTOCOLS:
        raise UserError(f"{word!r} is no checkpoint protocol: say one of {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[word]


def name_of(checkpoint: Checkpointing | None) -> str:
    match checkpoint:
        case None:
            return "none"
        case Coordinated(mode=mode):
            return mode
        case CommunicationInduced(rule=rule):
            return rule
        case checkpointing.Uncoordinated():
            return "uncoordinated"


def either(protocols: Iterable[Protocol]) -> str:
    """Their names for a sentence: "hmnr, bcs or uncoordinated"."""
    *most, last = (protocol.name for protocol in protocols)
    return f"{', '.join(most)} or {last}" if most else last
