"""Snapshots name what they hold by words that stay: files can move, and old stores be read."""

import datetime
import importlib
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import everstream as es
from everstream.connectors.files.filesystem import filesystem_of
from everstream.connectors.journal.log import HEADER, JournalSegment, Log
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Outcome
from everstream.core.registry import PROTOCOLS
from everstream.errors import InternalError
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.sink import SinkShard
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.shapes import Shape
from everstream.simulation.storm import scheme_for
from everstream.simulation.workers import SimulatedWorker
from everstream.simulation.world import World
from everstream.state import saved
from everstream.state.freezing import dumps
from everstream.state.saved import CLASSES, Saved
from everstream.state.snapshot import MAGIC
from everstream.state.store import CheckpointStore
from tests.docs.simulated import Given

ALLOWED = {
    *(f"everstream.state.saved.{name}" for name in ("revive", "nested", "frame", "series")),
    *(f"everstream.state.saved.{name}" for name in ("array", "objects", "scalar", "merged")),
    *("numpy.dtype", "builtins.frozenset", "builtins.set"),
}
"""All that pickles of ours may name, whatever is in them but values of a user's own classes. These
names must stay for ever, so think twice before you add one."""

WORDS = [
    *(
        "block-offset",
        "channel-state",
        "disk-state",
        "file-range",
        "files-offset",
        "key-offset",
        "key-range",
    ),
    *("lake-file", "lake-offset", "lake-transaction"),
    *(
        "outdated",
        "paced-begun",
        "paced-offset",
        "part-name",
        "part-transaction",
        "parts-transaction",
    ),
    *(
        "pending-name",
        "rejected",
        "sink-shard",
        "stage-transaction",
        "stream-offset",
        "table-transaction",
    ),
    *("webhook-transaction", "spilled-frames"),
    *("kafka-offset", "kafka-transaction"),
]
"""The words of the classes that were ever saved. Add to these, and take none out."""


class Listing(pickle.Unpickler):
    """Unpickles, and remembers every name it was asked for, also by pickles within pickles."""

    def __init__(self, data: bytes, names: set[str]) -> None:
        super().__init__(io.BytesIO(data))
        self.names = names

    def find_class(self, module: str, name: str) -> Any:
        self.names.add(f"{module}.{name}")
        if (module, name) == (saved.__name__, "nested"):
            return lambda data: Listing(data, self.names).load()
        return super().find_class(module, name)


def names_in(data: bytes) -> set[str]:
    names: set[str] = set()
    Listing(data, names).load()
    return names


# The words.


def test_no_word_is_ever_taken_out_and_each_leads_to_its_class() -> None:
    assert sorted(WORDS) == sorted(CLASSES)
    for word, place in CLASSES.items():
        module, _, name = place.partition(":")
        kind = getattr(importlib.import_module(module), name)
        assert issubclass(kind, Saved) and kind.word == word


def test_a_class_that_moves_without_its_word_is_noticed_at_once() -> None:
    with pytest.raises(InternalError, match="not in CLASSES as 'file-range'"):

        class Split(Saved, word="file-range"):
            pass


def test_a_word_of_a_newer_version_is_not_called_a_bug() -> None:
    with pytest.raises(pickle.UnpicklingError, match="a newer one has written it"):
        pickle.loads(
            pickle.dumps(SinkShard("p", "o", 0, 1, 1, "s")).replace(b"sink-shard", b"sink-lords")
        )


# Values.

NOW = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
FRAME = pl.DataFrame(
    {
        "n": [1, None, 3],
        "text": ["a", "", None],
        "at": [NOW, None, NOW],
        "price": [Decimal("1.50"), None, Decimal("2.25")],
        "many": [[1], [], None],
        "both": [{"x": 1, "y": "z"}, None, {"x": 2, "y": None}],
        "nothing": [None, None, None],
    },
    schema_overrides={"price": pl.Decimal(10, 2)},
).with_columns(
    kind=pl.Series(["a", "b", "a"], dtype=pl.Enum(["a", "b"])),
    cat=pl.Series(["u", "v", "u"], dtype=pl.Categorical),
)


@pytest.mark.parametrize(
    "frame",
    [FRAME, FRAME.clear(), FRAME[1:], pl.concat([FRAME, FRAME], rechunk=False), pl.DataFrame()],
)
def test_frames_come_back_with_their_types_under_lasting_names(frame: pl.DataFrame) -> None:
    data = dumps({"frame": frame, "columns": frame.get_columns()})
    back = pickle.loads(data)
    assert back["frame"].equals(frame) and back["frame"].schema == frame.schema
    assert all(
        a.equals(b, check_names=True, check_dtypes=True)
        for a, b in zip(back["columns"], frame.get_columns(), strict=True)
    )
    assert names_in(data) <= ALLOWED


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::3],
        np.array(["2024-02-29"], "datetime64[us]"),
        np.array([True, False]),
        np.array(3),
        np.empty((0, 2), np.int8),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([None, "a", [1]], dtype=object),
        np.array(["a", "bc"]),
    ],
)
def test_arrays_come_back_with_their_types_under_lasting_names(array: np.ndarray[Any, Any]) -> None:
    data = dumps([array])
    (back,) = pickle.loads(data)
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.tolist() == array.tolist()
    assert back.flags.writeable
    assert names_in(data) <= ALLOWED


@pytest.mark.parametrize(
    "number", [np.int64(3), np.float32(0.5), np.bool_(True), np.datetime64("2024-02-29", "s")]
)
def test_numbers_of_numpy_come_back_as_they_were(number: np.generic) -> None:
    back = pickle.loads(dumps([number]))[0]
    assert type(back) is type(number) and back == number and back.dtype == number.dtype
    assert names_in(dumps([number])) <= ALLOWED


# What runs leave.


class Everything(es.Operator):
    """Keeps one of each."""

    seen = es.Keyed(init=list)

    def process(self, record: Any, ctx: es.Context) -> None:
        self.seen[ctx.key].append(record)
        ctx.state.put("array", np.arange(3))
        ctx.state.put("frame", pl.DataFrame({"n": [1]}))
        ctx.state.put("number", np.int64(1))
        ctx.emit(record)


def pipelines(folder: Path) -> Iterator[es.Pipeline]:
    (folder / "lines.txt").write_text("".join(f"{n}\n" for n in range(400)))
    rows = es.Range(400, column="n", batch=4)
    sinks: list[Any] = [
        es.JsonLines(folder / "json"),
        es.Csv(folder / "csv", schema={"n": pl.Int64, "total": pl.Int64}),
        es.Parquet(folder / "parquet", schema={"n": pl.Int64, "total": pl.Int64}),
        es.Sqlite(folder / "rows.db", "rows", schema={"n": pl.Int64, "total": pl.Int64}),
    ]
    for number, sink in enumerate(sinks):
        pipeline = es.Pipeline(f"sink-{number}")
        keyed = pipeline.source(rows, name="rows").key_by("n")
        keyed.aggregate(total=es.sum("n"), name="total", shards=2).sink(sink, name="out")
        yield pipeline
    lines = es.Pipeline("lines")
    texts = lines.source(es.TextLines(folder / "lines.txt", batch_bytes=8), name="lines")
    texts.key_by(lambda line: len(line)).process(Everything(), name="all", shards=2).collect()
    yield lines
    timed = es.Pipeline("timed")
    pace = timed.source(es.Paced(rows, rate=10_000, clock=lambda: 0.0), name="rows")
    windows = pace.event_time("n", unit="s", name="time").window(es.Tumbling("50s"))
    windows.aggregate(n=es.count(), best=es.top_k("n", 2), name="windows").collect()
    yield timed


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("protocol", ["aligned", "unaligned", "uncoordinated"])
def test_snapshots_of_real_runs_name_nothing_that_may_move(
    protocol: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert protocol in PROTOCOLS
    pipeline = list(pipelines(tmp_path))[number]
    monkeypatch.setattr(SimulatedWorker, "store_url", str(tmp_path / "store"))
    shape: Shape = Given(pipeline.name, 2, lambda pipeline, world: None, dict, given=pipeline)
    world = World(number, shape, NO_FAULTS, scheme_for(protocol, 0))
    world.when("epoch 2 is stable", world.stop)
    assert world.run().outcome in (Outcome.STOPPED, Outcome.FINISHED)
    store = CheckpointStore(world.disk)
    refs = {
        ref
        for found in store.manifests()
        for record in EpochManifest.from_json(found.body).records.values()
        for ref in record.objects
    }
    assert refs
    for ref in refs:
        data = store.get(ref)
        assert data.startswith(MAGIC)
        assert names_in(data[len(MAGIC) + 1 :]) <= ALLOWED


def test_a_journal_names_nothing_that_may_move(tmp_path: Path) -> None:
    offset, rejected = es.Range(3).open(0, 1).offset, [Rejected("x", "ValueError: no")]
    fs, folder = filesystem_of(str(tmp_path), None)
    log = Log(fs, folder, "shard-0-of-1")
    notes = log.encoded(JournalSegment(1, 0), 0, None, offset, rejected)[HEADER.size :]
    assert pickle.loads(notes) == (offset, rejected)
    assert names_in(notes) <= ALLOWED


LOOKING_AND_SAVING = """
import threading
import polars as pl
from everstream.connectors.encoding import encode
from everstream.runtime.payload import encode_batch
from everstream.state.freezing import dumps

frame, done = pl.DataFrame({"n": range(4_000)}), False

def look():
    while not done:
        frame.schema

looking = threading.Thread(target=look)
looking.start()
for _ in range(300):
    for save in (dumps, encode, encode_batch):
        save(frame)
done = True
looking.join()
"""


def test_a_frame_can_be_looked_at_while_it_is_saved() -> None:
    """Polars locks what it writes; two threads that wait for each other stop the whole process."""
    subprocess.run([sys.executable, "-c", LOOKING_AND_SAVING], timeout=120, check=True)
