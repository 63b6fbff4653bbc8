"""Ranges as they are typed: `4`, `1:4` (each from 1 to 4), `1:2:8` (from 1 to 8 in steps of 2).

Several may be joined with commas. A range that steps over its end still has its end: `1:2:8` is
1, 3, 5, 7, 8, because the end is what somebody wants to see who asked for it.
"""

from everstream.errors import UserError

HOW = "say 4, 1:4 (each from 1 to 4), 1:2:8 (in steps of 2, the end included), or 1,2,8"


def parse_range(text: str, what: str = "--workers") -> tuple[int, ...]:
    """The numbers a range stands for, rising, each once.

    >>> parse_range("1:4"), parse_range("1:2:8"), parse_range("8,1:2")
    ((1, 2, 3, 4), (1, 3, 5, 7, 8), (1, 2, 8))
    """
    return tuple(sorted({number for part in text.split(",") for number in _part(part, what)}))


def _part(text: str, what: str) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(":")]
    except ValueError:
        numbers = []
    match numbers:
        case [one]:
            first, step, last = one, 1, one
        case [first, last]:
            step = 1
        case [first, step, last]:
            pass
        case _:
            raise UserError(f"{what} {text!r} is no range: {HOW}.")
    if first < 1 or step < 1 or last < first:
        raise UserError(
            f"{what} {text!r}: a range begins at 1 or above, has a step of 1 or above and does not "
            f"end before it begins; {HOW}."
        )
    return [*range(first, last, step), last]
