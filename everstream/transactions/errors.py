"""What can go wrong with transactions, by who has to act: the author, the operator, or us."""


class TransactionError(Exception):
    """The base of every error of this package."""


class DefinitionError(TransactionError):
    """A table or transaction is declared wrongly; the message says what to change."""


class InputError(TransactionError):
    """A batch of events does not fit the declared transactions."""


class ExecutionError(TransactionError):
    """A transaction function raised; the engine's state is no longer whole: recover it."""


class LogError(TransactionError):
    """The log in the store cannot be used as it is."""
