"""Values of an earlier version of a program, kept as they were until they are read.

A key store knows the version of its values, and so does every snapshot. When a program declares a
later version, existing values are wrapped as `Outdated`, which takes a moment for all keys. A value
is migrated when it is read, and has the new version from then on. A checkpoint holds both kinds
with their versions, so a second upgrade can find values of several versions and tell them apart.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from everstream.errors import UserError
from everstream.state.freezing import is_steady
from everstream.state.saved import Saved

Migrate: TypeAlias = Callable[[Any, int], Any] | Mapping[int, Callable[[Any], Any]]
"""From a value and its version to one of the newest; or version -> from that to the next."""
FIRST_VERSION = 1


@dataclass(frozen=True)
class Outdated(Saved, word="outdated"):
    """A value as an earlier version of the program has left it."""

    value: Any
    version: int


@dataclass(frozen=True)
class Migration:
    """The version of the values that a program keeps, and how to migrate earlier ones."""

    version: int = FIRST_VERSION
    migrate: Migrate | None = None

    def __post_init__(self) -> None:
        version, migrate = self.version, self.migrate
        if not isinstance(version, int) or version < FIRST_VERSION:
            raise UserError(f"version={version!r}: must be 1, 2, 3 and so on.")
        if version > FIRST_VERSION and migrate is None:
            raise UserError(
                f"version={version} needs migrate=: a function of a value and its version that "
                f"returns one of version {version}; or a dict with a function for each step."
            )
        if isinstance(migrate, Mapping):
            missing = [step for step in range(FIRST_VERSION, version) if step not in migrate]
            if missing:
                raise UserError(
                    f"version={version}, migrate={{...}}: it has no function from version "
                    f"{missing[0]} to {missing[0] + 1}. Values of every earlier version may exist."
                )

    def check_not_before(self, version: int) -> None:
        """Raise a UserError if values of this version are later than the program's version."""
        if version > self.version:
            raise UserError(
                f"the values in the checkpoint have version {version}, and the program keeps "
                f"version {self.version}: values cannot be migrated to an earlier version. Use the "
                "program that wrote them, or roll back to an earlier checkpoint with `everstream "
                "rewind`."
            )

    def __call__(self, old: Outdated) -> Any:
        """The value migrated to this version. The old one stays unchanged in any case."""
        value = old.value if is_steady(old.value) else copy.deepcopy(old.value)
        if isinstance(self.migrate, Mapping):
            for step in range(old.version, self.version):
                value = self.migrate[step](value)
            return value
        assert self.migrate is not None
        return self.migrate(value, old.version)


NEVER_CHANGED = Migration()
