"""Redis as a sink: a key for each row, so that writing again does no harm.

A batch is sent as calls of one Lua script, each of which first compares the generation of the shard
with the newest one the server knows. Checking and writing are one step there, so a writer that was
replaced cannot restore old values. The sink's own keys record the generations and the owner:
`everstream:<pipeline>.<operator>:generations` and `...:owner`.
"""

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, replace
from typing import Any, Final, Literal

import msgspec
import polars as pl

from everstream.connectors.columns import Columns, Format, never, without_json
from everstream.connectors.files.json_lines import JsonEncoder
from everstream.connectors.files.parts import owner_of
from everstream.connectors.options import KeyTemplate
from everstream.connectors.ownership import Claim, Owner
from everstream.connectors.redis.client import RedisServer
from everstream.connectors.refusing import encoded_or_refused
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.sink import Committable, Delivery, Permit, Sink, SinkShard, Writer

Form = Literal["hash", "json"]
ROWS_PER_CALL: Final = 1_000
"""Rows per script call. A script blocks all other clients; this many take about a millisecond."""
LOST, REPLACED = -1, -2

_NEWER: Final = """
local function newer(a, b)  -- numbers of Lua are exact up to 2^53 only, and generations are larger
  if #a ~= #b then return #a > #b end
  return a > b
end
"""
"""Compares two generations as text, in decimal and without leading zeros."""
_FENCED: Final = f"""{_NEWER}
local newest = redis.call('HGET', KEYS[1], ARGV[1])
if not newest then return {LOST} end
if newer(newest, ARGV[2]) then return {REPLACED} end
local expire_ms = tonumber(ARGV[3])
local keys, names, columns = unpack(cmsgpack.unpack(ARGV[4]))
"""
_TEXTS: Final = (
    _FENCED
    + """
for i = 1, #keys do
  if expire_ms > 0 then redis.call('SET', keys[i], columns[1][i], 'PX', expire_ms)
  else redis.call('SET', keys[i], columns[1][i]) end
end
return #keys
"""
)
_HASHES: Final = (
    _FENCED
    + """
for i = 1, #keys do
  local fields = {}
  for j = 1, #names do
    if columns[j][i] then
      fields[#fields + 1] = names[j]
      fields[#fields + 1] = columns[j][i]
    end
  end
  redis.call('DEL', keys[i])
  if #fields > 0 then redis.call('HSET', keys[i], unpack(fields)) end
  if expire_ms > 0 then redis.call('PEXPIRE', keys[i], expire_ms) end
end
return #keys
"""
)

FORMAT = Format("Redis", widens=True, needs_type=never)


class Redis(Sink):
    """Writes rows to a Redis server: each row replaces the value of its key.

    `url` is redis://host:6379/0 (rediss:// with TLS; a password in it is neither stored nor shown).
    `key` is a template, "user:{id}", or the name of a column. A row becomes a hash of its columns;
    with `form="json"` a JSON text; with `value="count"` the plain text of that column. With
    `expire="1h"` a key expires this long after it was last written.

    Idempotent: rows are written when they come, and again after a failure. Supports one server, or
    a primary with replicas, but not Redis Cluster. If the server cannot be reached, the sink
    retries for `patience`.

    >>> counts = es.Pipeline("to-redis").source(es.FromList([{"word": "to", "n": 1}]))
    >>> pipeline = counts.sink(es.Redis("redis://localhost", key="count:{word}", value="n"))
    """

    delivery = Delivery.IDEMPOTENT

    def __init__(
        self,
        url: str,
        *,
        key: str,
        form: Form = "hash",
        value: str | None = None,
        expire: str | float | None = None,
        schema: Any = None,
        patience: str | float = "10s",
    ) -> None:
        if form not in ("hash", "json") or (value is not None and form != "hash"):
            raise UserError(
                "a row becomes a hash (form='hash'), a JSON text (form='json'), or the text of one "
                "column (value='name', without form)."
            )
        self._server = RedisServer(url, patience)
        self._key = KeyTemplate(key)
        self._form: Form = form
        self._value = value
        self._expire_ms = 0 if expire is None else round(1_000 * seconds(expire))
        if expire is not None and self._expire_ms < 1:
            raise UserError(f"expire={expire!r} must be at least a millisecond.")
        self._schema = pl.Schema(schema) if schema is not None else None

    def open(self, shard: SinkShard) -> Writer:
        # Redis stores text: there are no types for shards to agree on.
        columns = Columns(replace(shard, store=""), self._schema, FORMAT)
        rows = _Rows(self._key, self._form, self._value, self._expire_ms)
        return _RedisWriter(copy(self._server), shard, columns, rows)

    def check(self) -> None:
        self._server.ask(lambda client: client.ping())
        self._server.close()

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        """Removes only the recorded owner: keys are replaced as their rows come again."""
        self._claim(pipeline, operator, store).take()
        name = _generations(pipeline, operator)
        self._server.ask(lambda client: client.delete(name))
        self._server.close()

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        self._claim(pipeline, operator, store).keep()
        self._server.close()

    def _claim(self, pipeline: str, operator: str, store: str) -> Claim:
        return RedisClaim(self._server, Owner.of(pipeline, operator, store))


def _generations(pipeline: str, operator: str) -> str:
    return f"everstream:{owner_of(pipeline, operator)}:generations"


class RedisClaim(Claim):
    """A claim to the keys that one operator writes, in one database of a server."""

    kind = "database (redis://host:port/NUMBER)"

    def __init__(self, server: RedisServer, owner: Owner) -> None:
        super().__init__(f"the Redis server {server.place}", owner)
        self._server = server
        self._name = f"everstream:{owner_of(owner.pipeline, owner.operator)}:owner"

    def recorded(self) -> bytes | None:
        data: bytes | None = self._server.ask(lambda client: client.get(self._name))
        return data

    def create(self) -> bool:
        data = json.dumps(asdict(self.owner))
        return bool(self._server.ask(lambda client: client.set(self._name, data, nx=True)))

    def remove(self) -> None:
        self._server.ask(lambda client: client.delete(self._name))

    def how_to_free(self) -> str:
        return f"remove the key {self._name}"


class _Rows:
    """Converts rows to the arguments of a script."""

    def __init__(self, key: KeyTemplate, form: Form, value: str | None, expire_ms: int) -> None:
        self._key = key
        self._form = form
        self._value = value
        self.expire_ms = expire_ms
        self.script = _HASHES if form == "hash" and value is None else _TEXTS

    def packed(self, frame: pl.DataFrame, operator: str) -> bytes:
        """Keys, names and columns as one argument, so that Python does not pack single values."""
        keys = self._key.of(frame, f"operator '{operator}'").to_list()
        return msgspec.msgpack.encode((keys, frame.columns, self._columns(frame, operator)))

    def _columns(self, frame: pl.DataFrame, operator: str) -> list[list[Any]]:
        if self._value is not None:
            return [self._texts_of(frame, self._value, operator)]
        if self._form == "json":
            return [JsonEncoder(operator).encode(frame).decode().split("\n")[:-1]]
        texts = frame.select(_text(name, kind, operator) for name, kind in frame.schema.items())
        return [column.to_list() for column in texts]

    def _texts_of(self, frame: pl.DataFrame, name: str, operator: str) -> list[Any]:
        if name not in frame.columns:
            raise UserError(
                f"operator '{operator}': records have no {name}, which value= names; they have "
                f"{', '.join(frame.columns)}."
            )
        column = frame[name]
        if column.null_count():
            raise UserError(
                f"operator '{operator}': a record has no value for {name}, and Redis has no null. "
                "Leave such records out with a filter, or use form='json'."
            )
        return frame.select(_text(name, column.dtype, operator))[name].to_list()


def _text(name: str, kind: pl.DataType, operator: str) -> pl.Expr:
    """A column as Redis stores it: text, true and false as 1 and 0, lists and structs as JSON."""
    column = pl.col(name)
    if kind == pl.Boolean:
        return column.cast(pl.Int8).cast(pl.String)
    if isinstance(kind, pl.Struct):
        return column.map_batches(lambda values: _json(values, operator), pl.String)
    if kind == pl.Time:
        return column.dt.to_string("%H:%M:%S%.f")  # a cast would drop fractions of a second
    if isinstance(kind, pl.Duration):
        return column.dt.to_string("iso")
    if isinstance(kind, pl.List | pl.Array | pl.Object) or kind == pl.Binary:
        raise UserError(
            f"operator '{operator}': column '{name}' of type {kind} has no plain text. Use "
            "form='json', or turn it into text with a map."
        )
    return column.cast(pl.String)


def _json(values: pl.Series, operator: str) -> pl.Series:
    """Structs as JSON, each value unchanged."""
    if without_json(values) is None:
        return values.struct.json_encode()
    lines = JsonEncoder(operator).encode(values.struct.unnest()).decode().split("\n")[:-1]
    return pl.Series(values.name, lines).set(values.is_null(), None)


class _RedisWriter(Writer):
    def __init__(
        self, server: RedisServer, shard: SinkShard, columns: Columns, rows: _Rows
    ) -> None:
        self._server = server
        self._shard = shard
        self._columns = columns
        self._rows = rows
        self._fence = _generations(shard.pipeline, shard.operator)

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        frame = self._columns.settle(batch)
        for packed in encoded_or_refused(frame, self._packed, self._shard.operator):
            self._write(packed)

    def _packed(self, frame: Any) -> list[bytes]:
        pieces = frame.iter_slices(ROWS_PER_CALL)
        return [self._rows.packed(piece, self._shard.operator) for piece in pieces]

    def _write(self, packed: bytes) -> None:
        arguments = [self._shard.shard, self._shard.generation, self._rows.expire_ms, packed]
        script = self._rows.script
        done = self._server.ask(
            lambda client: client.register_script(script)(keys=[self._fence], args=arguments)
        )
        self._refuse_if_replaced(done)
        if done == LOST:
            raise ConnectorError(
                f"the Redis server {self._server.place} has lost data: the key "
                f"{self._fence} is missing. Make it keep its data (appendonly yes, no eviction of keys "
                "without expiry). To write everything again, start over with --fresh, which "
                "deletes the checkpoints."
            )

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        done = self._server.ask(
            lambda client: client.register_script(_TAKE_OVER)(
                keys=[self._fence], args=[self._shard.shard, self._shard.generation]
            )
        )
        self._refuse_if_replaced(done)
        return ()

    def _refuse_if_replaced(self, done: int) -> None:
        shard = self._shard
        if done == REPLACED:
            raise ConnectorError(
                f"a newer generation of shard {shard.shard} of '{shard.operator}' writes to the Redis "
                f"server {self._server.place}; generation {shard.generation} must stop."
            )

    def close(self) -> None:
        self._server.close()


_TAKE_OVER: Final = f"""{_NEWER}
local newest = redis.call('HGET', KEYS[1], ARGV[1])
if newest and newer(newest, ARGV[2]) then return {REPLACED} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 0
"""
