"""The same model written a second time with SimPy, one process per tuple.

It shares no code with the kernel and follows the words of the model, so agreement means
something. It is also the yardstick for the kernel's speed. SimPy is imported only here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from everstream_lab.queueing.model import EXIT, Distribution, Model, ModelError, SourceModel


@dataclass
class Outcome:
    """What the SimPy version counts."""

    window_s: float = 0.0
    delivered: int = 0
    lost: int = 0
    unprocessed: int = 0
    replayed: int = 0
    latency_sum_s: float = 0.0
    wait_sum_s: dict[str, float] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    catch_up_s: list[float] = field(default_factory=list)

    def mean_wait_s(self, name: str) -> float:
        return self.wait_sum_s[name] / max(1, self.served[name])

    @property
    def mean_latency_s(self) -> float:
        return self.latency_sum_s / max(1, self.delivered)


def _sampler(distribution: Distribution, rng: np.random.Generator) -> Callable[[], float]:
    first, second = distribution.first, distribution.second
    draws: dict[str, Callable[[], float]] = {
        "constant": lambda: first,
        "normal": lambda: max(0.0, rng.normal(first, second)),
        "exponential": lambda: rng.exponential(first),
        "uniform": lambda: rng.uniform(first, second),
        "lognormal": lambda: rng.lognormal(first, second),
        "gamma": lambda: rng.gamma(first, second),
        "poisson": lambda: float(rng.poisson(first)),
    }
    return draws[distribution.kind]


class _Simulation:
    def __init__(self, model: Model, seed: int) -> None:
        self.model = model
        self.rng = np.random.default_rng(seed)
        self.env = simpy.Environment()
        self.outcome = Outcome()
        self.finished = self.env.event()
        self.by_name = {operator.name: operator for operator in model.operators}
        self.cpus = {
            operator.name: simpy.Resource(self.env, operator.cpus) for operator in model.operators
        }
        self.service = {
            operator.name: _sampler(operator.service, self.rng) for operator in model.operators
        }
        for operator in model.operators:
            self.outcome.wait_sum_s[operator.name] = 0.0
            self.outcome.served[operator.name] = 0
        self.paused = False
        self.down: set[str] = set()
        self.due: dict[str, float] = {}
        # Backlog only: the source's log, how far it is read, and what a rollback goes back to.
        self.generation = 0
        self.log: list[tuple[float, str]] = []
        self.done: list[bool] = []
        self.read = self.stable = self.in_flight = 0
        self.behind_since: float | None = None
        self.resumed = self.env.event()
        self.open_sources = self.moving = 0

    def run(self) -> Outcome:
        for source in self.model.sources:
            self.env.process(self.deliver(source))
        control = (
            self.discard_control if self.model.behaviour == "discard" else self.backlog_control
        )
        self.env.process(control())
        self.env.run(until=self.finished)
        self.outcome.window_s = self.env.now
        return self.outcome

    def deliver(self, source: SourceModel) -> Generator[Any, Any, None]:
        self.open_sources += 1
        end_s = math.inf if self.model.window_s is None else self.model.window_s
        for due_s in self.moments(source):
            if due_s > end_s:
                break
            yield self.env.timeout(due_s - self.env.now)
            for _ in range(source.entities):
                if self.model.behaviour == "backlog":
                    self.log.append((self.env.now, source.to))
                    self.done.append(False)
                elif self.paused:
                    self.outcome.lost += 1
                else:
                    self.moving += 1
                    self.env.process(self.travel(source.to, self.env.now, -1))
            self.admit()
        self.open_sources -= 1
        self.end_of_time()

    def moments(self, source: SourceModel) -> Iterator[float]:
        """When the source delivers."""
        if source.load is not None:
            for number in itertools.count(1):
                yield source.first_s + source.load.due_s(float(number))
        assert source.gap is not None
        gap, at_s = _sampler(source.gap, self.rng), source.first_s
        while True:
            yield at_s
            at_s += gap()

    def end_of_time(self) -> None:
        """A window of time is over when nothing is on its way any more."""
        if self.model.window_s is None or self.open_sources or self.finished.triggered:
            return
        left = len(self.log) - sum(self.done) if self.model.behaviour == "backlog" else self.moving
        if left == 0:
            self.finished.succeed()

    def following(self, name: str) -> str:
        chance = self.rng.random()
        for successor, probability in self.by_name[name].next:
            if chance < probability:
                return successor
            chance -= probability
        return EXIT

    def travel(self, name: str, origin: float, number: int) -> Generator[Any, Any, None]:
        generation = self.generation
        skipped = False
        while name != EXIT:
            if name in self.down:
                skipped = True
                name = self.following(name)
                continue
            arrived = self.env.now
            with self.cpus[name].request() as request:
                yield request
                if generation != self.generation:
                    return
                if name in self.down:
                    continue
                self.outcome.wait_sum_s[name] += self.env.now - arrived
                self.outcome.served[name] += 1
                yield self.env.timeout(self.service[name]())
                if generation != self.generation:
                    return
            name = self.following(name)
        self.in_flight -= 1
        self.moving -= 1
        self.leave(origin, number, skipped)
        self.end_of_time()
        self.admit()

    def leave(self, origin: float, number: int, skipped: bool) -> None:
        if number >= 0:
            if self.done[number]:
                return
            self.done[number] = True
        self.outcome.delivered += 1
        self.outcome.unprocessed += skipped
        self.outcome.latency_sum_s += self.env.now - origin
        if self.outcome.delivered == self.model.window_tuples and not self.finished.triggered:
            self.finished.succeed()

    def discard_control(self) -> Generator[Any, Any, None]:
        checkpoints, failures = self.model.checkpoints, self.model.failures
        if checkpoints is None:
            return
        if failures is not None:
            for name in failures.operators:
                self.env.process(self.strike(name))
        while True:
            yield self.env.timeout(checkpoints.interval_s)
            self.paused = True
            pause_s = checkpoints.commit_s
            failed = set(self.down)
            if failed and failures is not None:
                times = len(failed) if failures.recovery == "one_by_one" else 1
                pause_s += failures.recovery_s * times
                between = _sampler(failures.between, self.rng)
                for name, due in self.due.items():
                    if due < self.env.now + pause_s:
                        self.due[name] = self.env.now + pause_s + between()
            yield self.env.timeout(pause_s)
            self.down -= failed
            self.paused = False

    def strike(self, name: str) -> Generator[Any, Any, None]:
        """Discard, counted from failure to failure: mark the operator down when its time comes."""
        assert self.model.failures is not None
        between = _sampler(self.model.failures.between, self.rng)
        self.due[name] = between()
        while True:
            # A recovery may have moved the due time while this process slept.
            while self.env.now < self.due[name]:
                yield self.env.timeout(self.due[name] - self.env.now)
            self.due[name] = self.env.now + between()
            self.down.add(name)

    def admit(self) -> None:
        if self.model.behaviour != "backlog" or self.paused:
            return
        while self.read < len(self.log) and self.in_flight < self.model.in_flight_limit:
            origin, to = self.log[self.read]
            self.env.process(self.travel(to, origin, self.read))
            self.read += 1
            self.in_flight += 1
        if self.read == len(self.log) and self.behind_since is not None:
            self.outcome.catch_up_s.append(self.env.now - self.behind_since)
            self.behind_since = None

    def backlog_control(self) -> Generator[Any, Any, None]:
        """Checkpoints and failures at fixed times only, which is what the comparisons use."""
        checkpoints, failures = self.model.checkpoints, self.model.failures
        strikes = sorted(failures.at_s) if failures is not None else []
        next_checkpoint = checkpoints.interval_s if checkpoints else math.inf
        while True:
            strike = strikes[0] if strikes else math.inf
            if min(strike, next_checkpoint) == math.inf:
                return
            yield self.env.timeout(min(strike, next_checkpoint) - self.env.now)
            self.paused = True
            if strike <= next_checkpoint and failures is not None:
                strikes.pop(0)
                self.generation += 1
                self.in_flight = 0
                self.outcome.replayed += self.read - self.stable
                self.read = self.stable
                yield self.env.timeout(failures.detection_s + failures.recovery_s)
                self.behind_since = self.env.now
            elif checkpoints is not None:
                snapshot = self.read
                yield self.env.timeout(checkpoints.commit_s)
                while self.in_flight > 0:
                    yield self.env.timeout(1e-5)
                self.stable = snapshot
            self.paused = False
            if checkpoints is not None:
                next_checkpoint = self.env.now + checkpoints.interval_s
            self.admit()


def simulate_with_simpy(model: Model, seed: int = 0) -> Outcome:
    """Run the model tuple by tuple in SimPy. Slow; for comparison only."""
    if model.behaviour == "backlog" and model.failures and not model.failures.at_s:
        raise ModelError("the SimPy version of 'backlog' takes failures at fixed times (at_s)")
    return _Simulation(model, seed).run()
