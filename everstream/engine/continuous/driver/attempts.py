"""The workers' processes as the driver sees them, and diagnosis of those that end or fall silent.

A task is started again when its process is gone, so a task has one attempt after the other; the
newest that said hello counts. The coordinator decides which process takes the place of which
worker. If a process is on our machine, we hold a handle of it, which becomes readable when the
process ends, and we can inspect the process when it falls silent.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field

import zmq

from everstream.core.ids import TaskNumber, WorkerId
from everstream.core.measuring import WorkerMeasures
from everstream.core.plan import Plan
from everstream.engine.continuous.liveness.exit_diagnosis import ExitExaminer
from everstream.engine.continuous.liveness.life_sign import ASK, at_work, is_awake, read_stacks
from everstream.engine.continuous.transport.control_messages import Beat, Hello
from everstream.engine.continuous.worker.process_use import Used
from everstream.events import RunEvent, WorkerSilent

STACK_AFTER_S = 1.0
"""The stacks are read this long after they were requested from a worker."""


@dataclass
class Attempt:
    hello: Hello
    identity: bytes
    heard_s: float
    worker: WorkerId | None = None
    """Its place; None while it is a spare."""
    pidfd: int | None = None
    used: Used = field(default_factory=Used)
    """The resource use that it last reported."""
    told_to_die: bool = False
    asked_again_s: float = 0.0
    """When a worker that is alive but silent is asked for its stacks again."""


class Attempts:
    """The newest attempt of each present task."""

    def __init__(
        self,
        plan: Plan,
        spares: int,
        machine: str,
        poller: zmq.Poller,
        tell: Callable[[RunEvent], None],
    ) -> None:
        """machine: ours; the poller gets the handles of the processes on it."""
        self.newest: dict[TaskNumber, int] = {}
        """The newest attempt of each task that has sent anything, even if it is gone."""
        self._plan = plan
        self._spares = spares
        self._machine = machine
        self._poller = poller
        self._tell = tell
        self._examiner = ExitExaminer(plan)
        self._current: dict[TaskNumber, Attempt] = {}
        self._placed: dict[WorkerId, Attempt] = {}

    @property
    def missing(self) -> int:
        """How many workers have no process."""
        return len(self._plan.workers) - len(self._placed)

    @property
    def all_here(self) -> bool:
        """Whether every worker has a process and every spare is present."""
        return len(self._current) == len(self._plan.workers) + self._spares

    def identities(self) -> Iterator[bytes]:
        return (attempt.identity for attempt in self._current.values())

    def of(self, worker: WorkerId) -> Attempt | None:
        return self._placed.get(worker)

    def process(self, number: TaskNumber) -> Attempt | None:
        return self._current.get(number)

    def place(self, number: TaskNumber, worker: WorkerId) -> Attempt:
        attempt = self._current[number]
        attempt.worker = worker
        self._placed[worker] = attempt
        return attempt

    def replan(self, plan: Plan) -> None:
        """Places are vacated: every process says hello again, with this plan."""
        self._plan = plan
        self._examiner = ExitExaminer(plan)
        for attempt in self._placed.values():
            attempt.worker = None
        self._placed = {}

    def is_placed(self, identity: bytes) -> bool:
        """Whether the sender has a place in the current plan; earlier plans do not count."""
        return any(attempt.identity == identity for attempt in self._placed.values())

    @property
    def present(self) -> int:
        """Processes that are present, with or without a place."""
        return len(self._current)

    def is_current(self, identity: bytes, number: TaskNumber) -> bool:
        return number in self._current and self._current[number].identity == identity

    def measures(self) -> dict[WorkerId, WorkerMeasures]:
        return {
            worker: WorkerMeasures(a.hello.machine, a.hello.pid, a.hello.attempt, *astuple(a.used))
            for worker, a in self._placed.items()
        }

    # Messages from workers.

    def heard(self, number: TaskNumber, attempt: int) -> None:
        """This attempt of this task has been present."""
        self.newest[number] = max(attempt, self.newest.get(number, 0))

    def welcome(self, identity: bytes, hello: Hello, now_s: float) -> None:
        """This attempt replaces any earlier one of its task; it has no place yet."""
        if hello.number in self._current:
            self.forget(hello.number)
        attempt = Attempt(hello, identity, now_s)
        if hello.machine == self._machine and hasattr(os, "pidfd_open"):
            try:
                attempt.pidfd = os.pidfd_open(hello.pid)
                self._poller.register(attempt.pidfd, zmq.POLLIN)
            except OSError:
                attempt.pidfd = None  # gone already, or not permitted: heartbeats will show
        self._current[hello.number] = attempt
        self.heard(hello.number, hello.attempt)

    def beat(self, beat: Beat, now_s: float) -> None:
        attempt = self._current.get(beat.number)
        if attempt is not None and attempt.hello.attempt == beat.attempt:
            attempt.heard_s = now_s
            attempt.used = beat.used
            attempt.asked_again_s = 0.0

    # The end of workers.

    def ended(self, pidfd: int) -> list[tuple[TaskNumber, str]]:
        """The process whose handle has become readable, and how it ended."""
        return [
            (number, self._how_it_ended(attempt, pidfd))
            for number, attempt in self._current.items()
            if attempt.pidfd == pidfd
        ]

    def _how_it_ended(self, attempt: Attempt, pidfd: int) -> str:
        if attempt.told_to_die:
            return "killed on purpose"
        shards = [] if attempt.worker is None else self._plan.workers[attempt.worker]
        hello = attempt.hello
        words = self._examiner.examine(
            hello.address, shards, hello.pid, pidfd, attempt.used.peak_bytes
        )
        return str(words)

    def silent(self, limit_s: float, now_s: float) -> list[tuple[TaskNumber, int]]:
        """Processes without any sign of life, with the ids of their tasks."""
        found = []
        for number, attempt in self._current.items():
            if now_s - attempt.heard_s <= limit_s:
                continue
            if attempt.pidfd is not None and is_awake(attempt.hello.pid):
                self._say_what_keeps_it(attempt, now_s)
            else:
                found.append((number, attempt.hello.task))
        return found

    def _say_what_keeps_it(self, attempt: Attempt, now_s: float) -> None:
        """Its process is alive but silent: something holds Python's interpreter lock."""
        if now_s < attempt.asked_again_s:
            return
        if attempt.asked_again_s:
            what = at_work(read_stacks(attempt.hello.address))
            worker = None if attempt.worker is None else int(attempt.worker)
            self._tell(WorkerSilent(worker, now_s - attempt.heard_s, what or None))
        os.kill(attempt.hello.pid, ASK)
        attempt.asked_again_s = now_s + STACK_AFTER_S * (1 if not attempt.asked_again_s else 30)

    def forget(self, number: TaskNumber) -> None:
        """This process is lost: its task is absent until a new attempt says hello."""
        attempt = self._current.pop(number)
        if attempt.worker is not None and self._placed.get(attempt.worker) is attempt:
            del self._placed[attempt.worker]
        self._let_go(attempt)

    def close(self) -> None:
        for attempt in self._current.values():
            self._let_go(attempt)

    def _let_go(self, attempt: Attempt) -> None:
        if attempt.pidfd is not None:
            self._poller.unregister(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pidfd = None
