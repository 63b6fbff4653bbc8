"""Recovery schemes by name: how transactional state survives a crash."""

from everstream.transactions.recovery.delta import DeltaLog
from everstream.transactions.recovery.dependency import DependencyLog
from everstream.transactions.recovery.fast import FastOptions, FastRecovery
from everstream.transactions.recovery.lsn_vector import LsnVector
from everstream.transactions.recovery.scheme import (
    BatchRun,
    CheckpointOnly,
    Inputs,
    NoRecovery,
    RecoveryScheme,
    TransactionRecovery,
)
from everstream.transactions.recovery.wal import WriteAheadLog

SCHEMES: dict[str, type[RecoveryScheme]] = {
    scheme.name: scheme
    for scheme in (
        NoRecovery,
        CheckpointOnly,
        WriteAheadLog,
        DependencyLog,
        LsnVector,
        FastRecovery,
        DeltaLog,
    )
}
DEFAULT = "delta"

__all__ = [
    "DEFAULT",
    "SCHEMES",
    "BatchRun",
    "FastOptions",
    "Inputs",
    "RecoveryScheme",
    "TransactionRecovery",
]
