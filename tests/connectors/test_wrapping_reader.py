"""A source that wraps another hides nothing of it."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import create_autospec

import pytest

import everstream as es
from everstream.audit.throttled_source import ThrottledSource
from everstream.connectors.wrapping import Wrapping, WrappingReader
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.times import NO_WATERMARK, TimeOf
from everstream_lab.apps.interfaces.loading import Sizes, Together

OF_THE_WRAPPING_ONE = {"offset", "seek", "read", "ready_in_s"}
"""What depends on how records are given, or on what an offset is."""
PASSED_ON = {
    name
    for name, what in vars(Reader).items()
    if callable(what) and not name.startswith("_") and name not in OF_THE_WRAPPING_ONE
}
TOLD: dict[str, tuple[Any, ...]] = {
    "fence": (3,),
    "stop_at": (9,),
    "use_store": ("a-store",),
    "keep_time": (float, int),
    "tune": ({"batch": "10"}, 2),
    "stable": (7,),
    "forget": (7,),
    "close": (),
}
"""With what; the others are asked."""


class Wrapped(WrappingReader):
    offset = 0
    holds = False

    def inner_offset(self, offset: Any) -> Any:
        return offset

    def read(self) -> None: ...


@pytest.mark.parametrize("name", sorted(PASSED_ON))
def test_a_reader_passes_on_all_that_it_is_told_or_asked(name: str) -> None:
    inner = create_autospec(Reader, instance=True)
    arguments = TOLD.get(name, ())
    answer = getattr(Wrapped(inner), name)(*arguments)
    passed_on = getattr(inner, name)
    passed_on.assert_called_once_with(*arguments)
    assert answer is (None if name in TOLD else passed_on.return_value)


class Marked(Source[int]):
    """Says something of its own wherever a source can."""

    max_shards, on_error, own_slots, replayable = 3, "skip", 2, False
    event_time = TimeOf("at", "s")

    def open(self, shard: int, shards: int) -> Reader:
        return Timed()

    def total_records(self) -> int:
        return 5

    def tunable(self) -> dict[str, str]:
        return {"batch": "10"}

    def describe_offsets(self) -> dict[str, Any]:
        return {"source": "here"}

    def column_names(self) -> list[str]:
        return ["at"]

    def waits_for(self) -> str:
        return "somebody"

    def stopping_point(self) -> int:
        return 50


class Timed(Reader):
    """Five batches of ten records; the time is that of the last one."""

    offset = 0

    def __init__(self) -> None:
        self.known: list[int] = []

    def seek(self, offset: int) -> None:
        self.offset = offset

    def read(self) -> list[int] | EndOfStream:
        if self.offset == 50:
            return END
        self.offset += 10
        return list(range(self.offset - 10, self.offset))

    def watermark(self) -> int:
        return self.offset - 1 if self.offset else NO_WATERMARK

    def stable(self, offset: int) -> None:
        self.known.append(offset)


class Plainly(Wrapping[int]):
    def open(self, shard: int, shards: int) -> Reader:
        raise NotImplementedError


def test_a_source_passes_on_all_that_it_says_of_itself() -> None:
    inner, outer = Marked(), Plainly(Marked())
    for name in ("max_shards", "on_error", "own_slots", "needs_spark", "replayable", "event_time"):
        assert getattr(outer, name) == getattr(inner, name), name
    for name in ("total_records", "tunable", "column_names", "waits_for", "stopping_point"):
        assert getattr(outer, name)() == getattr(inner, name)(), name
    assert outer.describe_offsets() == {"source": "Plainly", "of": {"source": "here"}}
    said = {name for name in vars(Source) if not name.startswith("_")}
    # A wrapper asks the one inside for `as_source` when it is made.
    own = {"as_source", "open", "exact_batches", "redistribute", "unread", "overlooked"}
    assert said - vars(Wrapping).keys() - vars(outer).keys() == own, (
        "how batches are cut and what an offset is are the wrapper's own affair"
    )


def test_a_paced_source_knows_the_column_it_adds() -> None:
    assert es.Paced(Marked(), 10, due="due_us").column_names() == ["at", "due_us"]


def wrappers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source[int]]:
    gate = tmp_path_factory.mktemp("gate") / "open"
    gate.touch()
    times = iter(range(1_000_000))
    yield es.Paced(Marked(), 4, clock=lambda: float(next(times)))
    yield ThrottledSource(Marked(), 80, str(gate), whole_frames=False)
    yield Together(Marked(), Sizes(15, 0, 50), 0.0)


def test_what_waits_in_a_wrapper_is_never_late(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also after it was sought: then what was promised before counts for nothing."""
    for source in wrappers(tmp_path_factory):
        reader = source.open(0, 1)
        begin, middle = reader.offset, None
        for _ in range(2):
            reader.seek(begin)
            given, promised = 0, NO_WATERMARK
            assert reader.watermark() <= 0
            while not isinstance(batch := reader.read(), EndOfStream):
                if batch is not None and len(batch):
                    assert batch[0] > promised, (
                        f"{type(source).__name__}: record {batch[0]} is late"
                    )
                    given += len(batch)
                promised = reader.watermark()
                middle = reader.offset if given < 25 else middle
            assert (given, promised) == (50, 49), type(source).__name__
        reader.stable(middle)
        assert isinstance(reader, WrappingReader) and isinstance(reader._inner, Timed)
        assert reader._inner.known == [reader.inner_offset(middle)]
