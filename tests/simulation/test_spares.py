"""Spares take the places of workers that are lost, and standbys that of drivers, in seeded runs."""

import pytest

from everstream.core.orders import AssignWorker, Phase
from everstream.core.registry import PROTOCOLS
from everstream.simulation.driver import SimulatedDriver
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.shapes import shape_for
from everstream.simulation.storm import has_cycle, policy_for, scheme_for
from everstream.simulation.world import World

TAKEOVERS = Faults(takeovers=2)
QUICK_SEEDS, MANY_SEEDS = 10, 1000


def world(protocol: str, seed: int, faults: Faults, spares: int) -> World:
    shape = shape_for(seed, cycles=has_cycle(protocol, seed))
    scheme, policy = scheme_for(protocol, seed), policy_for(protocol)
    return World(seed, shape, faults, scheme, policy, spares=spares)


def replay_command(protocol: str, seed: int, spares: int) -> str:
    cycles = " --cycles" if has_cycle(protocol, seed) else ""
    return (
        f"python -m everstream.simulation {seed} --protocol {protocol}{cycles} --spares {spares} "
        "--takeovers 2 --trace"
    )


def check(protocol: str, seeds: range) -> set[str]:
    """Every one is right; the kinds of faults they met."""
    met: set[str] = set()
    for seed in seeds:
        spares = seed % 3
        history = world(protocol, seed, TAKEOVERS, spares).run()
        command = replay_command(protocol, seed, spares)
        assert history.right, f"{history.violations}; replay with: {command}"
        met |= {" ".join(line.split()[1:3]) for line in history.faults}
    return met


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_spares_and_standbys_every_seed_ends_with_the_right_output(protocol: str) -> None:
    met = check(protocol, range(QUICK_SEEDS))
    assert {"kill worker", "kill the", "a standby"} <= met


@pytest.mark.parametrize("protocol", ["uncoordinated", "bcs"])
def test_nothing_is_sent_to_those_who_go_back_though_a_log_cannot_be_read(protocol: str) -> None:
    check(protocol, range(482, 483))


@pytest.mark.long
@pytest.mark.timeout(3600)  # a thousand runs; on a busy machine that takes long
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_spares_and_standbys_many_seeds_end_with_the_right_output(protocol: str) -> None:
    met = check(protocol, range(MANY_SEEDS))
    assert {"kill worker", "the spare", "a standby"} <= met


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_spare_takes_the_place_of_a_killed_worker_before_its_task_runs_again(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[tuple[float, AssignWorker]] = []
    simulated = world(protocol, 4, NO_FAULTS, spares=1)
    obey = SimulatedDriver.obey

    def watch(driver: SimulatedDriver, orders: list[object]) -> None:
        now_s = simulated.scheduler.now_s
        placed.extend((now_s, order) for order in orders if isinstance(order, AssignWorker))
        obey(driver, orders)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedDriver, "obey", watch)
    killed: list[float] = []

    def kill() -> None:
        driver = simulated.driver
        worker = next((worker for worker in driver.workers.values() if worker.id == 0), None)
        ready = driver.coordinator.phase is Phase.RUNNING and len(driver.workers) > len(placed)
        if worker is None or not ready:
            simulated.scheduler.after(0.001, kill)
            return
        killed.append(simulated.scheduler.now_s)
        worker.die()
        driver.start_worker(worker.number)
        driver.on_worker_lost(worker.number, "killed")

    simulated.scheduler.after(0.0, kill)
    history = simulated.run()
    assert history.right and history.recoveries == 1, history.violations
    after = [(at_s, order.worker) for at_s, order in placed if at_s >= killed[0]]
    assert after == [(killed[0], 0)], "at once, and nobody else"


def test_a_driver_that_was_replaced_lives_on_and_ends_when_it_learns_it() -> None:
    ended = 0
    for seed in range(10):
        simulated = world("aligned", seed, NO_FAULTS, spares=0)
        told: list[str] = []
        simulated.watchers.append(told.append)
        simulated.scheduler.at(0.1, simulated.take_over)
        history = simulated.run()
        assert history.right, f"seed {seed}: {history.violations}"
        ended += any("which was replaced, ends" in text for text in told)
    assert ended > 2, "many have something to write before the run is over"
