"""The records that a test looks at: a list that tells how it differs from another one."""

from collections.abc import Sequence
from typing import Any

from everstream.audit.comparison import SinkOutput, compare, fingerprint

SHOWN = 5
"""How many positions with another record are shown."""


class Records(list[Any]):
    """Output of a pipeline. Equal to a list with the same records in the same order."""


def difference(found: Sequence[Any], expected: Sequence[Any]) -> list[str]:
    """How an output differs from what was expected, line by line: records first, then the order.

    >>> difference([1, 2, 2], [1, 2, 3])
    ['the output has 3 record(s), and 3 are expected', '  missing:  3', '  too many: 2']
    """
    lines = [f"the output has {len(found)} record(s), and {len(expected)} are expected"]
    told = compare("", SinkOutput(expected), SinkOutput(found))
    lines += [f"  missing:  {text}" for text in told.missing]
    lines += [f"  too many: {text}" for text in told.surplus]
    if told.verdict.exact:
        lines.append("  the records are the same, in another order:")
        pairs = enumerate(zip(found, expected, strict=True))
        other = [(n, a, b) for n, (a, b) in pairs if fingerprint(a) != fingerprint(b)]
        lines += [f"  at {n}: {a!r}, expected {b!r}" for n, a, b in other[:SHOWN]]
    return lines
