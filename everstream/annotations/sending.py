"""Values that go from where a pipeline is made to the processes that run it."""

from collections.abc import Mapping
from typing import Any

import cloudpickle

from everstream.errors import UserError


def sendable(names: Mapping[str, Any] | None) -> dict[str, Any]:
    """Values that go to other processes; a UserError names the one that cannot."""
    for name, value in (names or {}).items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise UserError(
                f"'{name}' is used in a region, but its value cannot be sent to the processes "
                f"that run it ({type(error).__name__}: {error}). Make it there: in on_init of the "
                "stage that needs it, or in a generator that the loop goes over."
            ) from error
    return dict(names or {})
