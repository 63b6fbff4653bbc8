"""Everything that outlives a run says in which format it is, and a newer one is refused in words.

An older Everstream must not take what it does not understand for damage: it would fall back to an older
checkpoint, or end a log early, and say nothing of the loss.
"""

from everstream.errors import StoreError


def check_format(what: str, found: int, known: int) -> None:
    """Raise a StoreError if `what` is in a format that came after the newest one known here."""
    if found > known:
        raise StoreError(
            f"{what} has format {found}, and this Everstream reads up to format {known}: it was "
            "written by a newer one. Use that one, or give this run another store."
        )
