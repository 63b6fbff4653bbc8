"""Calls to a service in simulated runs: the right output, and no call whose answer is logged."""

import pickle
import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

import everstream as es
from everstream.core.orders import Policy
from everstream.core.scheme import ALIGNED, UNALIGNED, Scheme, scheme_of
from everstream.pipeline.calls.result_log import LogObject, ResultLog, content_key
from everstream.simulation.call_shapes import asked
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.world import World

SCHEMES = {
    "unaligned": UNALIGNED,
    "uncoordinated": scheme_of(es.Uncoordinated(every="20ms")),
    "hmnr": scheme_of(es.CommunicationInduced(rule="hmnr", every="20ms")),
    "bcs": scheme_of(es.CommunicationInduced(rule="bcs", every="20ms")),
}
PATIENT = Policy(
    every_s=0.03, max_restarts=1000, checkpoint_timeout_s=2.0, tolerable_failures=1_000_000
)
"""Nothing can be logged on a full disk, so a run lasts until there is room again."""
RESCALES = Faults(rescales=4, worker_kills=2, ambushes=1)
KILLS = replace(NO_FAULTS, worker_kills=4, driver_kills=2, ambushes=1)
"""Processes die, and the workers of a dead driver may still get answers after their successors began."""


def check(seeds: range, scheme: Scheme = ALIGNED, faults: Faults | None = None) -> int:
    """Run them all; how many failures the runs recovered from."""
    recoveries = 0
    for seed in seeds:
        shape = asked(random.Random(seed))
        history = World(seed, shape, faults or Faults(), scheme, PATIENT).run()
        assert history.right, f"seed {seed}: {history.violations} {history.notes}"
        recoveries += history.recoveries
    return recoveries


def test_each_record_has_its_answer_once_after_any_faults() -> None:
    assert check(range(8)) > 4


@pytest.mark.parametrize("name", SCHEMES)
def test_so_it_has_under_the_other_protocols(name: str) -> None:
    assert check(range(2), SCHEMES[name]) > 0


def test_so_it_has_while_the_numbers_of_shards_change() -> None:
    assert check(range(4), faults=RESCALES) > 0


def asked_again(seed: int, scheme: Scheme = ALIGNED) -> int:
    """How many calls were repeated in a run in which processes are killed; none that was logged."""
    world = World(seed, asked(random.Random(seed)), KILLS, scheme)
    adopted: dict[str, list[str]] = {}
    newest: dict[str, int] = {}
    live = ResultLog.live

    def noting(log: ResultLog, *arguments: Any) -> Any:
        entries = live(log, *arguments)
        adopted[log.place], newest[log.place] = log._adopted, log._generation
        return entries

    def counts(path: str) -> bool:
        """Whether every shard has found it when it began, or one has written it since."""
        name = LogObject.parse(path)
        if name is None or (adopted and all(path in paths for paths in adopted.values())):
            return name is not None
        return name.generation >= newest.get(f"{name.shard}of{name.shards}", 0)

    def no_answer_is_there(row: Any) -> None:
        content = content_key(row)
        for path, data in world.disk.files.items():
            if counts(path):
                known = {entry[1] for entry in pickle.loads(data[4:])[1]}
                found.extend([f"{row} has an answer in '{path}'"] if content in known else [])

    found: list[str] = []
    world.outside.on_ask = no_answer_is_there
    with mock.patch.object(ResultLog, "live", noting):
        history = world.run()
    assert not found, f"seed {seed}: {found[0]}"
    assert history.right, f"seed {seed}: {history.violations} {history.notes}"
    return sum(
        times - 1 - (number % 5 == 0)
        for number, times in world.outside.asked.items()
        if number % 11 != 5
    )


def test_a_call_whose_answer_is_logged_is_never_made_again() -> None:
    assert sum(map(asked_again, range(8))) > 0, "calls under way are repeated"


@pytest.mark.long
@pytest.mark.parametrize("case", range(20))
def test_each_record_has_its_answer_once_for_a_thousand_seeds(case: int) -> None:
    seeds = range(100 + case * 50, 150 + case * 50)
    assert check(seeds[:20]) > 0
    assert check(seeds[20:30], faults=RESCALES) > 0
    for number, scheme in enumerate(SCHEMES.values()):
        check(seeds[30 + 3 * number : 33 + 3 * number], scheme)
    for seed in seeds[42:]:
        asked_again(seed)
