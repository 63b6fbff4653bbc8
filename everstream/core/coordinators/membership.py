"""Which hosts are here, and where they are reached."""

from collections.abc import Collection, Iterator
from typing import Any

from everstream.core.ids import HostId, ShardId
from everstream.core.plan import Plan


class Membership:
    """The hosts of the plan that have said hello and were not lost since."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._addresses: dict[HostId, Any] = {}

    def __contains__(self, host: HostId) -> bool:
        return host in self._addresses

    def __iter__(self) -> Iterator[HostId]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def complete(self) -> bool:
        """Everybody is here."""
        return len(self._addresses) == len(self._plan.hosts)

    @property
    def addresses(self) -> dict[HostId, Any]:
        return dict(self._addresses)

    def join(self, host: HostId, address: Any) -> None:
        self._addresses[host] = address

    def leave(self, host: HostId) -> None:
        del self._addresses[host]

    def of(self, shards: Collection[ShardId]) -> list[HostId]:
        """Those who run any of these shards."""
        wanted = set(shards)
        return [host for host in self if not wanted.isdisjoint(self._plan.hosts[host])]
