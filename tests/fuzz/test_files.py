"""Any file a run leaves may change by itself: exact output, or a clear refusal; never silence."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstream as es
from everstream.core.scheme import Checkpointing
from everstream.errors import ConnectorError
from tests.fuzz.mutations import files_of, kind_of, mutate
from tests.fuzz.scene import cut_off, expected, go_on, shown
from tests.shared_memory import folder_in_memory

PROTOCOLS: list[Checkpointing] = [
    es.Coordinated(),
    es.Coordinated(mode="unaligned"),
    es.Uncoordinated(every="10ms"),
]
MOMENTS = ["epoch 2 is stable", "epoch 3 is stable", "epoch 4 is being written"]
QUICK, LONG = 20, 500


class Stage:
    """Folders of runs that were cut off, to be copied, damaged and gone on with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.feeds: dict[tuple[int, int], list[int]] = {}

    def copy(self, protocol: int, moment: int, to: Path) -> list[int]:
        source = self.folder / f"{protocol}-{moment}"
        if (protocol, moment) not in self.feeds:
            self.feeds[protocol, moment] = cut_off(
                source, PROTOCOLS[protocol], MOMENTS[moment], seed=protocol
            )
        shutil.copytree(source, to)
        return self.feeds[protocol, moment]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with folder_in_memory() as folder:
        yield Stage(folder)


def damaged_and_gone_on(stage: Stage, seed: int) -> str:
    chance = random.Random(seed)
    protocol, moment = chance.randrange(len(PROTOCOLS)), chance.randrange(len(MOMENTS))
    folder = stage.folder / f"seed-{seed}"
    feed = stage.copy(protocol, moment, folder)
    what = f"seed {seed}, {PROTOCOLS[protocol]}, {MOMENTS[moment]}: {mutate(folder, seed, chance)}"
    try:
        refusal = go_on(folder, PROTOCOLS[protocol], feed, seed)
        if refusal is not None:
            assert str(folder) in refusal or "store" in refusal, f"{what}: names no file: {refusal}"
            return "refused"
        try:
            found = shown(folder)
        except ConnectorError as error:
            assert str(folder) in str(error), f"{what}: names no file: {error}"
            return "refused"
        assert found == expected(), f"{what}: wrong output, and not a word"
        return "exact"
    except Exception as error:
        error.add_note(what)
        raise
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("protocol", range(len(PROTOCOLS)))
def test_a_run_that_was_cut_off_and_not_damaged_goes_on_exactly(
    stage: Stage, protocol: int
) -> None:
    seen = set()
    for moment in range(len(MOMENTS)):
        folder = stage.folder / f"sound-{protocol}-{moment}"
        feed = stage.copy(protocol, moment, folder)
        assert feed and feed[0] > 0, "cut off in the middle"
        seen |= {kind_of(path, folder) for path in files_of(folder)}
        assert go_on(folder, PROTOCOLS[protocol], feed, seed=1) is None
        assert shown(folder) == expected()
    wanted = {"objects", "manifests", "waiting/_pending", "outputs/_pending", "journal/segment"}
    assert seen >= {*wanted, "dead_letters/_pending", "lines/left", "parquet/left"}, seen


def test_a_damaged_file_gives_exact_output_or_a_refusal(stage: Stage) -> None:
    ends = Counter(damaged_and_gone_on(stage, seed) for seed in range(QUICK))
    assert ends["exact"] and ends["refused"], ends


@pytest.mark.long
def test_many_damaged_files_give_exact_output_or_a_refusal(stage: Stage) -> None:
    ends = Counter(damaged_and_gone_on(stage, seed) for seed in range(QUICK, QUICK + LONG))
    assert ends["exact"] and ends["refused"], ends
