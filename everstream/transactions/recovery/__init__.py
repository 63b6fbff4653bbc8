"""Recovery schemes by name: how transactional state survives a crash."""

from everstream.transactions.recovery.checkpoint import Checkpoint
from everstream.transactions.recovery.delta import Delta
from everstream.transactions.recovery.dependency import DependencyLog
from everstream.transactions.recovery.fast import FastOptions, FastRecovery
from everstream.transactions.recovery.lsn_vector import LsnVector
from everstream.transactions.recovery.none import NoRecovery
from everstream.transactions.recovery.scheme import (
    BatchRun,
    Inputs,
    RecoveryReport,
    Scheme,
)
from everstream.transactions.recovery.wal import WriteAheadLog

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (
        NoRecovery,
        Checkpoint,
        WriteAheadLog,
        DependencyLog,
        LsnVector,
        FastRecovery,
        Delta,
    )
}
DEFAULT = "delta"

__all__ = [
    "DEFAULT",
    "SCHEMES",
    "BatchRun",
    "FastOptions",
    "Inputs",
    "RecoveryReport",
    "Scheme",
]
