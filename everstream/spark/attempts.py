"""The hosts' processes as the driver knows them, and what it can tell of those that end or fall silent.

Spark starts a task again when its process is gone, so a host has one attempt after the other; the
newest that said hello counts. Where it shares our machine we hold a handle of its process, which
becomes readable when it ends, and can look at it when nothing is heard of it.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq

from everstream.core.ids import HostId
from everstream.core.plan import Plan
from everstream.spark.last_words import Coroner
from everstream.spark.life_sign import ASK, at_work, is_awake, read_stacks
from everstream.spark.talk import Beat, Hello

STACK_AFTER_S = 1.0
"""So long after a host was asked for its stacks they are read."""


@dataclass
class Attempt:
    """A host as we know it."""

    hello: Hello
    identity: bytes
    heard_s: float
    pidfd: int | None = None
    peak_bytes: int = 0
    """The most memory that it has said to have had."""
    told_to_die: bool = False
    asked_again_s: float = 0.0
    """When a host that lives and says nothing is asked for its stacks again."""


class Attempts:
    """The newest attempt of each host that is there."""

    def __init__(
        self, plan: Plan, machine: str, poller: zmq.Poller, on_trouble: Callable[[str], None]
    ) -> None:
        """machine: ours; the poller gets the handles of the processes that run on it."""
        self.newest: dict[HostId, int] = {}
        """The newest attempt of each host that has said anything, even if it is gone."""
        self._plan = plan
        self._machine = machine
        self._poller = poller
        self._on_trouble = on_trouble
        self._coroner = Coroner(plan)
        self._current: dict[HostId, Attempt] = {}

    @property
    def missing(self) -> int:
        """How many hosts are not there."""
        return len(self._plan.hosts) - len(self._current)

    def identities(self) -> Iterator[bytes]:
        return (attempt.identity for attempt in self._current.values())

    def of(self, host: HostId) -> Attempt | None:
        return self._current.get(host)

    def is_current(self, identity: bytes, host: HostId) -> bool:
        return host in self._current and self._current[host].identity == identity

    # What they say.

    def heard(self, host: HostId, number: int) -> None:
        """Attempt `number` of this host has been there."""
        self.newest[host] = max(number, self.newest.get(host, 0))

    def welcome(self, identity: bytes, hello: Hello, now_s: float) -> None:
        """This attempt takes the place of any earlier one of its host."""
        earlier = self._current.get(hello.host)
        if earlier is not None:
            self._let_go(earlier)
        attempt = Attempt(hello, identity, now_s)
        if hello.machine == self._machine and hasattr(os, "pidfd_open"):
            try:
                attempt.pidfd = os.pidfd_open(hello.pid)
                self._poller.register(attempt.pidfd, zmq.POLLIN)
            except OSError:
                attempt.pidfd = None  # gone already, or not allowed: heartbeats will tell
        self._current[hello.host] = attempt
        self.heard(hello.host, hello.attempt)

    def beat(self, beat: Beat, now_s: float) -> None:
        attempt = self._current.get(beat.host)
        if attempt is not None and attempt.hello.attempt == beat.attempt:
            attempt.heard_s = now_s
            attempt.peak_bytes = beat.peak_bytes
            attempt.asked_again_s = 0.0

    # How they end.

    def ended(self, pidfd: int) -> list[tuple[HostId, str]]:
        """Whose process has ended, when its handle has become readable, and how."""
        return [
            (host, self._how_it_ended(host, attempt, pidfd))
            for host, attempt in self._current.items()
            if attempt.pidfd == pidfd
        ]

    def _how_it_ended(self, host: HostId, attempt: Attempt, pidfd: int) -> str:
        if attempt.told_to_die:
            return "killed on purpose"
        shards, hello = self._plan.hosts[host], attempt.hello
        words = self._coroner.examine(hello.address, shards, hello.pid, pidfd, attempt.peak_bytes)
        return str(words)

    def silent(self, limit_s: float, now_s: float) -> list[tuple[HostId, int]]:
        """Hosts of which nothing is heard or seen any more, with Spark's ids of their tasks."""
        found = []
        for host, attempt in self._current.items():
            if now_s - attempt.heard_s <= limit_s:
                continue
            if attempt.pidfd is not None and is_awake(attempt.hello.pid):
                self._say_what_keeps_it(host, attempt, now_s)
            else:
                found.append((host, attempt.hello.task))
        return found

    def _say_what_keeps_it(self, host: HostId, attempt: Attempt, now_s: float) -> None:
        """Its process lives and says nothing: something holds Python's interpreter lock."""
        if now_s < attempt.asked_again_s:
            return
        if attempt.asked_again_s:
            what = at_work(read_stacks(attempt.hello.address))
            self._on_trouble(
                f"host {host} has been silent for {now_s - attempt.heard_s:.3g} s, and its process "
                f"lives: it is left to finish what keeps it, {what or 'which nobody can see'}"
            )
        os.kill(attempt.hello.pid, ASK)
        attempt.asked_again_s = now_s + STACK_AFTER_S * (1 if not attempt.asked_again_s else 30)

    def forget(self, host: HostId) -> None:
        """This host is lost: it is not there until a new attempt says hello."""
        self._let_go(self._current.pop(host))

    def close(self) -> None:
        for attempt in self._current.values():
            self._let_go(attempt)

    def _let_go(self, attempt: Attempt) -> None:
        if attempt.pidfd is not None:
            self._poller.unregister(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pidfd = None
