"""Names of pipelines and operators: which are usable, and what an operator is called by default."""

import re

_USABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_usable(name: str) -> bool:
    """Names become parts of file names."""
    return _USABLE.fullmatch(name) is not None


def base_name(what: object) -> str:
    """What an operator is called if nobody names it.

    >>> class TextLines: ...
    >>> base_name(TextLines())
    'text_lines'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(what).__name__).lower()
