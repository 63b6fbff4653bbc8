"""What can go wrong with transactions, by who has to act: the author, the operator, or us.

What an event or a declaration is to blame for is a `UserError`. A function that raised half way
through a batch is not: the state is no longer whole, so the event cannot just be left out.
"""

from everstream.errors import EnvironmentFault, EverstreamError, UserError


class TransactionError(EverstreamError):
    """The base of every error of this package."""


class DefinitionError(TransactionError, UserError):
    """A table or transaction is declared wrongly; the message says what to change."""


class InputError(TransactionError, UserError):
    """A batch of events does not fit the declared transactions."""


class ExecutionError(TransactionError):
    """A transaction function raised; the engine's state is no longer whole: recover it."""


class LogError(TransactionError, EnvironmentFault):
    """The log in the store cannot be used as it is."""
