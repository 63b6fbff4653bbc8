"""A real run that comes near the memory its hosts may have."""

import pytest

import everstream as es
from everstream.errors import RunFailed, UserError
from everstream.pipeline.sizes import size_bytes
from everstream.spark.listener import Listener


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, warning: bool) -> None:
        self.notes.append(text)


def hoarding(values: int) -> es.Pipeline:
    pipeline = es.Pipeline("hoarding")
    keyed = pipeline.source(es.Range(values)).key_by(lambda n: n)
    kept = keyed.fold(init=bytes, update=lambda value, n: bytes(100_000) + bytes([n % 7]))
    kept.map(lambda pair: pair[0]).collect()
    return pipeline


def test_a_host_at_its_limit_says_whose_state_it_is_and_what_to_do() -> None:
    notes = Notes()
    with pytest.raises(RunFailed) as failed:
        hoarding(20_000).run(
            host_memory="700m", master="local[1]", checkpoint=None, listener=notes, max_restarts=1
        )
    told = str(failed.value)
    assert "700 MB it may have" in told and "the state of 'fold' in shard 0" in told
    assert "state='disk'" in told and "keys, " in told
    assert sum("wait until there is less" in note for note in notes.notes) == 1


def test_with_its_state_on_disk_the_same_run_stays_below() -> None:
    pipeline = hoarding(8_000)
    result = pipeline.run(host_memory="700m", master="local[1]", state="disk", checkpoint=None)
    assert result.records_out == 8_000


@pytest.mark.parametrize(
    ("said", "meant"), [("2g", 2_000_000_000), ("512 MB", 512_000_000), (7, 7)]
)
def test_a_size_is_said_in_words_or_bytes(said: str | int, meant: int) -> None:
    assert size_bytes("host_memory", said) == meant


@pytest.mark.parametrize("said", ["", "much", "-1g", "0"])
def test_what_is_no_size_is_refused(said: str) -> None:
    with pytest.raises(UserError, match="is no size"):
        size_bytes("host_memory", said)
