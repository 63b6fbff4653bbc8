"""Transactional state for streams, and its recovery."""

from everstream.transactions.definition import ABORT, Transaction, transaction
from everstream.transactions.engine import TransactionEngine
from everstream.transactions.errors import (
    DefinitionError,
    ExecutionError,
    InputError,
    LogError,
    TransactionError,
)
from everstream.transactions.interpreter import Interpreter
from everstream.transactions.recovery import SCHEMES, TransactionRecovery
from everstream.transactions.tables import Table

__all__ = [
    "ABORT",
    "SCHEMES",
    "DefinitionError",
    "ExecutionError",
    "InputError",
    "Interpreter",
    "LogError",
    "Table",
    "Transaction",
    "TransactionEngine",
    "TransactionError",
    "TransactionRecovery",
    "transaction",
]
