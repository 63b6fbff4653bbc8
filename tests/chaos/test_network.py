"""The network fails between workers that all live: what it lost is noticed, and nothing is missing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.coordinators import restarts
from everstream.engine.continuous.driver.driver import Driver
from everstream.engine.continuous.transport.control_messages import Hello
from everstream.engine.result import RunResult
from everstream.events import ConnectionCut, PeerUnreachable, RunEvent

from .conftest import MASTER, Killer, expected, killable, shown
from .places import store_of
from .relay import Relay

OFTEN = es.Coordinated(every="200ms")


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay()
    yield relay
    relay.close()


@pytest.fixture
def one_worker_behind_it(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that goes to the worker of the operator `middle` passes the relay."""
    welcome = Driver._welcome

    def through_the_relay(self: Driver, identity: bytes, hello: Hello, now_s: float) -> None:
        # Without spares a process has the place of its own number.
        if (
            hello.number
            == self.coordinator.plan.worker_of[self.coordinator.plan.shard_for("middle")]
        ):
            hello = replace(hello, address=relay.address(hello.address))
        welcome(self, identity, hello, now_s)

    monkeypatch.setattr(Driver, "_welcome", through_the_relay)


@pytest.fixture
def the_driver_behind_it(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that goes between the workers and the driver passes the relay."""
    prepare = Driver.__post_init__

    def through_the_relay(self: Driver) -> None:
        prepare(self)
        task = self.task
        self.task = lambda address, ticket: task(
            relay.address(address), replace(ticket, key_exchange=relay.address(ticket.key_exchange))
        )

    monkeypatch.setattr(Driver, "__post_init__", through_the_relay)


class Story(Killer):
    """Does something at epoch 3, and something when a worker cannot be reached."""

    def __init__(
        self, folder: Path, at_3: Callable[[], None], unreachable: Callable[[], None] | None = None
    ) -> None:
        super().__init__(folder, at_epoch=lambda epoch: at_3() if epoch == 3 else None)
        self.unreachable = unreachable

    def on_event(self, event: RunEvent) -> None:
        super().on_event(event)
        if self.unreachable is not None and isinstance(event, PeerUnreachable):
            self.unreachable()
            self.unreachable = None


def run(folder: Path, story: Story, checkpoint: Any = OFTEN, max_restarts: int = 20) -> RunResult:
    return killable(folder).run(
        checkpoint=checkpoint,
        store=store_of(folder),
        master=MASTER,
        workers=6,
        transport="tcp",
        heartbeat_timeout="4s",
        slow_after="2s",
        max_restarts=max_restarts,
        listener=story,
    )


@pytest.mark.usefixtures("one_worker_behind_it")
@pytest.mark.parametrize(
    "checkpoint",
    [OFTEN, pytest.param(es.Uncoordinated(every="200ms"), marks=pytest.mark.long)],
    ids=["aligned", "uncoordinated"],
)
def test_frames_lost_in_a_short_cut_are_noticed_and_made_up_for(
    tmp_path: Path, relay: Relay, checkpoint: Any
) -> None:
    story = Story(tmp_path, lambda: relay.swallow(heal_after_bytes=500))
    result = run(tmp_path, story, checkpoint)
    assert shown(tmp_path) == expected()
    assert relay.swallowed_bytes >= 500
    assert result.recoveries  # more than one where the machine itself is silent for seconds
    assert story.of(ConnectionCut)


@pytest.mark.usefixtures("one_worker_behind_it")
def test_a_network_that_swallows_everything_for_long_is_noticed_said_and_survived(
    tmp_path: Path, relay: Relay
) -> None:
    story = Story(tmp_path, relay.swallow, relay.heal)
    result = run(tmp_path, story)
    assert shown(tmp_path) == expected()
    assert result.recoveries
    assert story.of(ConnectionCut) and story.of(PeerUnreachable)


@pytest.mark.usefixtures("the_driver_behind_it")
def test_workers_cut_off_from_the_driver_are_replaced_and_count_as_one_failure(
    tmp_path: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "TOGETHER_S", 60.0)  # on a slow machine they need longer
    story = Story(tmp_path, lambda: relay.swallow(heal_after_bytes=5_000))
    result = run(tmp_path, story, max_restarts=3)
    assert shown(tmp_path) == expected()
    assert len(result.recoveries) > 3, "every worker, but they failed together"
