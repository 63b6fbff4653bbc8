"""Checks of what a connector is asked for that several of them make."""

from everstream.errors import UserError


def at_least_one(**sizes: int) -> None:
    """Raise a UserError for a size, given under the name the user knows, that is below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} must be at least 1, not {size}.")
