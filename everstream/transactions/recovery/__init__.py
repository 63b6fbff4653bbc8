"""Recovery schemes by name: how transactional state survives a crash."""

from importlib.metadata import entry_points
from typing import cast

from everstream.transactions.errors import DefinitionError
from everstream.transactions.recovery.delta import DeltaLog
from everstream.transactions.recovery.scheme import (
    BatchRun,
    CheckpointOnly,
    Inputs,
    NoRecovery,
    RecoveryScheme,
    TransactionRecovery,
)

SCHEMES: dict[str, type[RecoveryScheme]] = {
    scheme.name: scheme for scheme in (NoRecovery, CheckpointOnly, DeltaLog)
}
DEFAULT = "delta"
PAPERS = ("wal", "dependency", "lsn-vector", "fast")
"""Schemes to compare with, of the distribution `everstream-lab`."""


def scheme_of(name: str) -> type[RecoveryScheme]:
    """The scheme of this name; other distributions add theirs as entry points of one group."""
    if name in SCHEMES:
        return SCHEMES[name]
    added = entry_points(group="everstream.recovery_schemes")
    if name in added.names:
        return cast(type[RecoveryScheme], added[name].load())
    raise DefinitionError(
        f"recovery must be one of {', '.join([*SCHEMES, *sorted(added.names)])}, not {name!r}"
        + ("; `pip install everstream-lab` adds it" if name in PAPERS else "")
    )


__all__ = [
    "DEFAULT",
    "PAPERS",
    "SCHEMES",
    "BatchRun",
    "Inputs",
    "RecoveryScheme",
    "TransactionRecovery",
    "scheme_of",
]
