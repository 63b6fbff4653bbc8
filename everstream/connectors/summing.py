"""The checksum of output that waits: added up as the bytes are written.

Output can be gigabytes a minute and all of it is summed on its way, so this is XXH3, which reads as
fast as memory gives. It tells rot from what was written; it is not made to withstand a forger.
"""

import xxhash


class RunningSum:
    """Of all bytes that were added so far."""

    def __init__(self) -> None:
        self._sum = xxhash.xxh3_64()

    def add(self, data: bytes) -> None:
        self._sum.update(data)

    def __str__(self) -> str:
        return self._sum.hexdigest()


def sum_of(data: bytes) -> str:
    """Of these bytes: 16 hexadecimal digits."""
    return xxhash.xxh3_64(data).hexdigest()
