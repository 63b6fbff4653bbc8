"""Sizes in words: "2g", "512 MB", or a number of bytes."""

import re

from everstream.errors import UserError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def size_bytes(name: str, size: str | int) -> int:
    """So many bytes; a UserError names the option if it is no size."""
    found = _SIZE.fullmatch(str(size))
    if found is None or float(found[1]) <= 0:
        raise UserError(f"{name}={size!r} is no size: say '2g', '512m' or a number of bytes.")
    return int(float(found[1]) * _UNITS[found[2].lower()])
