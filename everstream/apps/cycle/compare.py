"""Interfaces or settings side by side: means with intervals, and how many times the one the other.

Runs that are compared are made in turn, in one go, on one machine; only ratios of such runs mean
anything. The base is the first of them unless somebody says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everstream.apps.cycle.outcome import Outcome
from everstream.apps.cycle.statistics import Estimate, Ratio, estimate, ratio_of
from everstream.errors import UserError


@dataclass(frozen=True)
class Side:
    """One interface with one setting."""

    application: str
    interface: str
    workers: int
    batch: int
    throughput: Estimate
    """From the workers standing ready to the result being written."""
    with_start: Estimate
    """The same with the time until they stood ready."""
    latency_ms: Estimate | None
    against: Ratio
    """Its throughput by the base's."""
    exact: bool | None
    is_base: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "application": self.application,
            "interface": self.interface,
            "workers": self.workers,
            "batch": self.batch,
            "throughput": self.throughput.to_json(),
            "throughput_with_start": self.with_start.to_json(),
            "latency_ms": None if self.latency_ms is None else self.latency_ms.to_json(),
            "ratio": self.against.to_json(),
            "base": self.is_base,
            "exact": self.exact,
        }


def sides(outcomes: Sequence[Outcome], base: str | None = None) -> list[Side]:
    """Every setting of every application, against the base of its application."""
    groups: dict[tuple[str, str, int, int], list[Outcome]] = {}
    for outcome in outcomes:
        planned = outcome.planned
        key = (planned.application, planned.interface, planned.workers, planned.batch)
        groups.setdefault(key, []).append(outcome)
    found = []
    for key, some in groups.items():
        of_base = _base_of(key[0], groups, base)
        speeds = [one.items_per_s for one in some]
        waits = [one.latency_ms for one in some if one.latency_ms is not None]
        looked = [one.exact for one in some if one.exact is not None]
        found.append(
            Side(
                *key,
                estimate(speeds),
                estimate([one.items_per_s_with_start for one in some]),
                estimate(waits) if waits else None,
                ratio_of(speeds, [one.items_per_s for one in groups[of_base]]),
                all(looked) if looked else None,
                key == of_base,
            )
        )
    return found


def names(found: Sequence[Side]) -> list[str]:
    """What to call each: its interface, and of workers and batch what differs between them.

    A sequential program has one worker whatever the others have, and an application a batch of its
    own: that tells nobody anything.
    """
    farms = [side for side in found if side.interface != "sequential"]
    many_workers = len({side.workers for side in farms}) > 1
    batches = {(side.application, side.batch) for side in found}
    many_batches = len(batches) > len({application for application, _ in batches})
    return [
        ", ".join(
            [side.interface]
            + ([f"{side.workers} worker(s)"] if many_workers and side in farms else [])
            + ([f"batch {side.batch}"] if many_batches else [])
        )
        for side in found
    ]


Key = tuple[str, str, int, int]


def _base_of(application: str, groups: dict[Key, list[Outcome]], base: str | None) -> Key:
    own = [key for key in groups if key[0] == application]
    if base is None:
        return own[0]
    for key in own:
        if base in (key[1], f"{key[1]}-{key[2]}"):
            return key
    raise UserError(
        f"--base {base}: none of those compared; say an interface, or interface-workers as in "
        f"everstream-2: {', '.join(sorted({f'{key[1]}-{key[2]}' for key in own}))}."
    )
