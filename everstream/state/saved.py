"""The names of values in snapshots: words that stay, independent of where a class is defined.

A pickle names a class by its module, so a class that moves, of ours or inside a library, would make
every older store unreadable. Classes of ours that are saved inherit from `Saved` and are named by
the words in `CLASSES`; arrays and frames are saved as plain bytes with their type. A pickle then
names only this module, Python's and the user's. So these must never change: the name of this module
and of the functions `revive`, `nested`, `merged`, `instance`, `filled`, `instances_of`, `frame`, `series`, `array`, `objects`,
`scalar` and `nan_key`, their parameters, and the words.
"""

import copyreg
import importlib
import io
import pickle
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar, Final

import cloudpickle
import numpy as np
import polars as pl

from everstream.errors import InternalError
from everstream.state import instances

PROTOCOL: Final = 5
CLASSES: Final = {
    "block-offset": "everstream.connectors.generate.sources:BlockOffset",
    "channel-state": "everstream.runtime.channel_state:ChannelState",
    "disk-state": "everstream.state.backends.files:SavedFiles",
    "file-range": "everstream.connectors.files.ranges:Split",
    "files-offset": "everstream.connectors.files.ranges:LinesOffset",
    "kafka-offset": "everstream.connectors.kafka.offsets:KafkaOffset",
    "kafka-transaction": "everstream.connectors.kafka.sink:KafkaTransaction",
    "key-offset": "everstream.connectors.sql.postgres_source:KeyOffset",
    "key-range": "everstream.connectors.sql.postgres_source:_KeyRange",
    "lake-file": "everstream.connectors.lake.table:LakeFile",
    "lake-offset": "everstream.connectors.lake.source:LakeOffset",
    "lake-transaction": "everstream.connectors.lake.sink:LakeTransaction",
    "outdated": "everstream.state.migrating:Outdated",
    "paced-begun": "everstream.connectors.generate.paced:Begun",
    "paced-offset": "everstream.connectors.generate.paced:PacedOffset",
    "part-name": "everstream.connectors.files.parts:PartName",
    "part-transaction": "everstream.connectors.files.parts:PartTransaction",
    "parts-transaction": "everstream.connectors.files.parts:PartsTransaction",
    "pending-name": "everstream.connectors.files.parts:PendingName",
    "rejected": "everstream.pipeline.rejects:Rejected",
    "sink-shard": "everstream.pipeline.sink:SinkShard",
    "spilled-frames": "everstream.runtime.spilled:Spilled",
    "stage-transaction": "everstream.annotations.two_phase:StageTransaction",
    "stream-offset": "everstream.connectors.spark.landed:StreamOffset",
    "table-transaction": "everstream.connectors.sql.tables:TableTransaction",
    "webhook-transaction": "everstream.connectors.webhook:WebhookTransaction",
}
"""Word -> where the class is defined today. Words are never removed, nor given to another class."""


class Saved:
    """A class whose instances are saved under a word: `class Split(Saved, word="file-range")`."""

    word: ClassVar[str]

    def __init_subclass__(cls, word: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if word is not None:
            if CLASSES.get(word) != f"{cls.__module__}:{cls.__qualname__}":
                raise InternalError(f"{cls.__qualname__} is not in CLASSES as '{word}'")
            cls.word = word

    def __reduce__(self) -> tuple[Any, ...]:
        return (revive, (self.word, self.__getstate__()))


def revive(word: str, fields: dict[str, Any]) -> Any:
    """The instance that was saved under this word."""
    if word not in CLASSES:
        raise pickle.UnpicklingError(
            f"'{word}' is unknown to this Everstream: a newer one has written it"
        )
    module, _, name = CLASSES[word].partition(":")
    kind = getattr(importlib.import_module(module), name)
    revived = object.__new__(kind)
    revived.__dict__.update(fields)
    return revived


def nested(data: bytes) -> Any:
    """A value that was pickled before the value that contains it."""
    return pickle.loads(data)


def merged(parts: list[dict[Any, Any]]) -> dict[Any, Any]:
    """A dict that was saved in parts; a repeated key has its first position and last value."""
    whole: dict[Any, Any] = {}
    for part in parts:
        whole.update(part)
    return whole


def instance(name: str, fields: tuple[str, ...], unset: tuple[str, ...] = ()) -> Any:
    """An instance of a user's class, to be filled."""
    return instances.empty(name, fields, unset)


def filled(made: Any, state: tuple[tuple[str, ...], Any]) -> None:
    """Give an instance its values."""
    instances.fill(made, state)


def instances_of(
    keys: list[Any], name: str, fields: tuple[str, ...], data: bytes
) -> dict[Any, Any]:
    """A dict whose values are instances of one class of a user."""
    return instances.unpacked(keys, name, fields, data)


def frame(data: bytes) -> pl.DataFrame:
    return pl.read_ipc_stream(data)


def series(name: str, data: bytes) -> pl.Series:
    return frame(data).to_series().alias(name)


def array(dtype: np.dtype[Any], shape: tuple[int, ...], data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, np.uint8).view(dtype).reshape(shape)


def objects(shape: tuple[int, ...], values: list[Any]) -> np.ndarray[Any, Any]:
    """An array of Python objects."""
    flat = np.empty(len(values), object)
    flat[:] = values
    return flat.reshape(shape)


def scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    """A NumPy scalar."""
    return np.frombuffer(data, dtype)[0]


class NanKey(float):
    """A NaN that unpickles as the same object: a dict finds a NaN only by identity."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (nan_key, ())


NAN: Final = NanKey("nan")
"""The one NaN that keys have (`state/canonical_key.py`)."""


def nan_key() -> float:
    return NAN


def dumps(value: Any) -> bytes:
    """Pickle under lasting names; raises one of the errors of the pickle module if it cannot."""
    buffer = io.BytesIO()
    dump(value, buffer)
    return buffer.getvalue()


def dump(
    value: Any, file: Any, apart: Callable[[pickle.PickleBuffer], object] | None = None
) -> None:
    """Pickle into an object with `write`; memory for which `apart` returns None stays out."""
    pickler = pickle.Pickler(file, PROTOCOL, buffer_callback=apart)
    # Frames on their way are read by the same program, and pickle is faster for one record at a time.
    pickler.dispatch_table = _tables()[apart is None]
    pickler.dump(value)


_seen: dict[Any, Any] = {}
_joint: tuple[dict[Any, Any], dict[Any, Any]] | None = None


def _tables() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Our reducers before the registered ones, without and with those of the user's classes.

    Rebuilt only when the registered ones change.
    """
    global _seen, _joint
    if _joint is None or copyreg.dispatch_table != _seen:
        seen = dict(copyreg.dispatch_table)
        reducers: dict[Any, Any] = {**seen, **_REDUCERS}
        _joint, _seen = (reducers, instances.Reducers(reducers)), seen
    return _joint


def dumps_by_value(value: Any) -> bytes:
    """As `dumps`; classes that cannot be imported by name (a script's own) are pickled by value."""
    buffer = io.BytesIO()
    pickler = cloudpickle.Pickler(buffer, PROTOCOL)
    pickler.dispatch_table = ChainMap(_REDUCERS, pickler.dispatch_table)
    pickler.dump(value)
    return buffer.getvalue()


Reduced = tuple[Any, ...]


def _as_ever(value: Any) -> Reduced:
    """For rare kinds that only their library can save."""
    reduced: Reduced = value.__reduce_ex__(PROTOCOL)
    return reduced


def _frame(value: pl.DataFrame) -> Reduced:
    if pl.Object in value.dtypes:
        return _as_ever(value)
    # While a frame is written it is locked, also for threads that hold the GIL and ask for its
    # columns, which is a deadlock. The clone, which shares the data, is used here alone.
    return frame, (value.clone().write_ipc_stream(None).getvalue(),)


def _series(value: pl.Series) -> Reduced:
    if value.dtype == pl.Object:
        return _as_ever(value)
    return series, (value.name, value.to_frame().write_ipc_stream(None).getvalue())


def _array(value: np.ndarray[Any, Any]) -> Reduced:
    if value.dtype == np.dtype(object):
        return objects, (value.shape, value.reshape(-1).tolist())
    if value.dtype.hasobject or value.dtype.itemsize == 0:
        return _as_ever(value)
    flat: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return array, (value.dtype, value.shape, pickle.PickleBuffer(flat))


def _scalar(value: np.generic) -> Reduced:
    return scalar, (value.dtype, value.tobytes())


_SCALARS = (np.bool_, np.datetime64, np.timedelta64)
_REDUCERS: Final[dict[type, Callable[[Any], Reduced]]] = {
    pl.DataFrame: _frame,
    pl.Series: _series,
    np.ndarray: _array,
    **dict.fromkeys([*_SCALARS, *np.sctypeDict.values()], _scalar),
}
for _kind in (np.object_, np.void, np.str_, np.bytes_):
    del _REDUCERS[_kind]
