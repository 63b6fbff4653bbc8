"""The power is cut at any moment, and takes what was not synced: the next run is exact.

Store, journal and sinks are the real ones on a real folder. SQLite syncs its files itself, where
nobody sees it, so its database is left as it is.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstream as es
from everstream.connectors.files import parts
from everstream.core.scheme import Checkpointing
from everstream.state.storage import folders, localdisk
from tests.fuzz.power import Platter
from tests.fuzz.scene import cut_off, expected, go_on, shown

PROTOCOLS: list[Checkpointing] = [
    es.Coordinated(),
    es.Coordinated(mode="unaligned"),
    es.Uncoordinated(every="10ms"),
]
EVENTS = (40, 400)
QUICK, LONG = 12, 200


@pytest.fixture
def shared() -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("there is no folder in memory, where inodes are not used again")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def goes_on_exactly(shared: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What is wrong after a power cut at a moment that the seed chooses; None if nothing is."""
    chance = random.Random(seed)
    protocol, events = chance.choice(PROTOCOLS), chance.randint(*EVENTS)
    before, after = shared / f"before-{seed}", shared / f"after-{seed}"
    before.mkdir()
    with monkeypatch.context() as patch:
        platter = Platter(patch)
        feed = cut_off(before, protocol, events, seed)
        platter.cut(before, after, chance)
    for file in before.glob("rows.db*"):
        shutil.copy(file, after / file.name)
    what = f"seed {seed}, {protocol}, after {events} events"
    refusal = go_on(after, protocol, feed, seed)
    if refusal is not None:
        return f"{what}: refused: {refusal}"
    return None if shown(after) == expected() else f"{what}: the output is wrong"


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_power_cut_takes_nothing_that_was_said_to_be_durable(
    shared: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert goes_on_exactly(shared, seed, monkeypatch) is None


@pytest.mark.long
@pytest.mark.parametrize("case", range(10))
def test_it_takes_nothing_at_hundreds_of_moments(
    shared: Path, case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, per_case = QUICK + case * LONG // 10, LONG // 10
    for seed in range(first, first + per_case):
        assert goes_on_exactly(shared, seed, monkeypatch) is None


def no_sync(*_: object) -> None:
    """What a careless program does."""


UNSYNCED = {
    "names in the store": (localdisk, "sync_folder"),
    "names of sinks and journals": (folders, "sync_folder"),
    "prepared output": (parts, "sync_file"),
    "new folders": (folders, "make_folders"),
}
"""What is not synced -> where that is left out."""


@pytest.mark.parametrize("what", UNSYNCED)
def test_one_of_the_first_cuts_notices_what_is_not_synced(
    shared: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = UNSYNCED[what]
    careless = make_unsynced if name == "make_folders" else no_sync
    monkeypatch.setattr(module, name, careless)
    assert any(_goes_wrong(shared, seed, monkeypatch) for seed in range(QUICK))


def make_unsynced(folder: Path, private: Path | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _goes_wrong(shared: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    try:
        return goes_on_exactly(shared, seed, monkeypatch) is not None
    except Exception:
        return True
