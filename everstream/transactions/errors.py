"""The errors of transactions, by who has to act: the author, the operator, or us.

Errors caused by an event or a declaration are `UserError`s. A function that raised in the middle of
a batch is not: the state is incomplete, so the event cannot just be skipped.
"""

from everstream.errors import EnvironmentFault, EverstreamError, UserError


class TransactionError(EverstreamError):
    """The base of every error of this package."""


class DefinitionError(TransactionError, UserError):
    """A table or transaction is declared wrongly; the message explains what to change."""


class InputError(TransactionError, UserError):
    """A batch of events does not fit the declared transactions."""


class ExecutionError(TransactionError):
    """A transaction function raised; the engine's state is incomplete: recover it."""


class LogError(TransactionError, EnvironmentFault):
    """The log in the store cannot be used as it is."""
