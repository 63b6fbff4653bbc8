"""How many shards an operator should have, from how busy its present shards are.

Facts in, a decision out: from the measurements of each shard, the scaler decides which numbers of
shards to change. It aims at a target share of busy time. Several looks in a row must ask for a
change before it is made, and more of them to remove shards than to add some. After a change the
scaler waits until the effect shows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstream.core.ids import ShardId
from everstream.core.measuring import Meter
from everstream.core.plan import Plan
from everstream.pipeline.autoscale import AutoScale
from everstream.pipeline.graph import Broadcast, ByKey, ByRoute, Kind


@dataclass
class _Watched:
    """One chain of operators."""

    wanted: int = 0
    since_s: float = 0.0
    """Since when every look has asked for more shards than there are, or for fewer."""


@dataclass
class Scaler:
    """Decides for one run; `plan` is what runs now."""

    settings: AutoScale
    _at_s: float | None = None
    _calm_until_s: float = 0.0
    _before: dict[ShardId, float] = field(default_factory=dict)
    _watched: dict[str, _Watched] = field(default_factory=dict)

    def look(self, plan: Plan, meters: Mapping[ShardId, Meter], now_s: float) -> dict[str, int]:
        """Operator -> its new number of shards, for those that are to change now."""
        settings = self.settings
        if self._at_s is not None and now_s - self._at_s < settings.look_every_s:
            return {}
        busy = self._busy_shares(plan, meters, now_s)
        if now_s < self._calm_until_s:
            return {}
        changes: dict[str, int] = {}
        for operators in changeable(plan):
            chain = plan.chain_of[operators[0]]
            if chain in busy:
                shards = plan.chains[chain].shards
                count = self._decided(operators[0], shards, busy[chain], now_s)
                changes |= {} if count is None else dict.fromkeys(operators, count)
        if changes:
            self._calm_until_s = now_s + settings.calm_s
            self._watched.clear()
        return changes

    def changed(self, now_s: float) -> None:
        """Other shards are at work: earlier measurements no longer count."""
        self._at_s = None
        self._before = {}
        self._watched.clear()
        self._calm_until_s = now_s + self.settings.calm_s

    def _busy_shares(
        self, plan: Plan, meters: Mapping[ShardId, Meter], now_s: float
    ) -> dict[str, float]:
        """Chain -> the average share of time in which its shards were busy since the last look.

        Time blocked by back-pressure does not count: more shards here would not help.
        """
        spent = {shard: meter.busy_s for shard, meter in meters.items()}
        before, self._before = self._before, spent
        at_s, self._at_s = self._at_s, now_s
        if at_s is None or now_s <= at_s:
            return {}
        shares: dict[str, float] = {}
        for name, chain in plan.chains.items():
            shards = [ShardId(name, number) for number in range(chain.shards)]
            known = [s for s in shards if s in spent and s in before and spent[s] >= before[s]]
            if len(known) == len(shards):
                busy_s = sum(spent[shard] - before[shard] for shard in known)
                shares[name] = busy_s / (now_s - at_s) / len(shards)
        return shares

    def _decided(self, name: str, shards: int, busy: float, now_s: float) -> int | None:
        settings = self.settings
        wanted = math.ceil(shards * busy / settings.target_busy - settings.slack)
        wanted = min(settings.max, max(settings.min, wanted, 1))
        watched = self._watched.setdefault(name, _Watched(shards, now_s))
        same_way = (wanted > shards) - (wanted < shards)
        if same_way == 0 or same_way != (watched.wanted > shards) - (watched.wanted < shards):
            watched.wanted, watched.since_s = wanted, now_s
            return None
        # Up to the most that was asked for meanwhile, down only as far as all looks agree.
        watched.wanted = max(watched.wanted, wanted)
        patience_s = settings.up_after_s if same_way > 0 else settings.down_after_s
        return watched.wanted if now_s - watched.since_s >= patience_s else None


def changeable(plan: Plan) -> list[tuple[str, ...]]:
    """The operators whose shards can be changed automatically, grouped if they change together.

    Excluded are sources, operators with a limit, and those where every shard gets all records, a route
    chooses the shard or the order counts. Operators behind a key are apart from those before it, even if one shard runs
    both.
    """
    units: list[list[str]] = []
    for chain in plan.chains.values():
        units.append([])
        for name in chain.operators:
            if units[-1] and any(isinstance(e.routing, ByKey) for e in plan.graph.inputs(name)):
                units.append([])
            units[-1].append(name)
    return [tuple(unit) for unit in units if _may_change(plan, unit)]


def _may_change(plan: Plan, operators: Sequence[str]) -> bool:
    nodes = [plan.graph.nodes[name] for name in operators]
    if any(node.kind is Kind.SOURCE or node.what.max_shards is not None for node in nodes):
        return False
    if any(node.ordered for node in nodes):
        return False
    fixed = Broadcast | ByRoute
    return not any(isinstance(e.routing, fixed) for e in plan.graph.inputs(operators[0]))
