"""Redis as a lookup table: a function for `map_batches` that adds columns.

It makes one request for all keys of a batch and caches the newest answers for a while. It adds the
present values: a replay after a failure sees the values at that time.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import polars as pl

from everstream.connectors.options import KeyTemplate, at_least_one
from everstream.connectors.redis.client import RedisServer
from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.checkpointing import seconds

KEYS_PER_CALL: Final = 1_000


class RedisLookup:
    """Adds columns with what a Redis server holds for each row; null where it holds nothing.

    For `map_batches`. `key` is a template, "user:{id}", or the name of a column. `columns` names
    the added columns with their types: fields of a hash; with `form="json"` fields of a JSON
    object; with `form="text"` one column for the text. All keys of a batch are requested at once,
    each once. Answers are cached for `cache_for`, the newest `cache` of them (0 for none).

    The values are those the server holds at that moment. After a failure, records since the
    checkpoint are looked up again and may get newer values: exactly-once output then has each
    record once, with the value of the last lookup.

    >>> users = es.RedisLookup("redis://localhost", key="user:{id}", columns={"city": pl.String})
    >>> orders = es.Pipeline("orders").source(es.FromList([{"id": 7, "cents": 250}]))
    >>> pipeline = orders.map_batches(users).sink(es.JsonLines("with-cities/"))
    """

    def __init__(
        self,
        url: str,
        *,
        key: str,
        columns: Mapping[str, Any],
        form: Literal["hash", "json", "text"] = "hash",
        cache: int = 10_000,
        cache_for: str | float = "60s",
        patience: str | float = "10s",
    ) -> None:
        if form not in ("hash", "json", "text"):
            raise UserError(f"form={form!r}: use one of hash, json, text.")
        if not columns or (form == "text" and len(columns) != 1):
            raise UserError(
                "columns= names the added columns with types: {'city': pl.String}; with form='text' "
                "give one column."
            )
        if cache:
            at_least_one(cache=cache)
        self._server = RedisServer(url, patience)
        self._key = KeyTemplate(key)
        self._schema = pl.Schema(columns)
        self._form = form
        self._cache = _Cache(cache, seconds(cache_for))

    def __repr__(self) -> str:
        return f"RedisLookup({self._server.place}, {self._key.text})"

    @property
    def __name__(self) -> str:
        return "redis_lookup"

    def __call__(self, batch: Batch) -> pl.DataFrame:
        frame = columns_of(batch, "RedisLookup")
        taken = [name for name in self._schema if name in frame.columns]
        if taken:
            raise UserError(
                f"RedisLookup: records already have {', '.join(taken)}. Name other columns, or "
                "rename these before it."
            )
        keys = (
            self._key.of(frame, "RedisLookup") if frame.height else pl.Series("key", [], pl.String)
        )
        wanted = keys.unique(maintain_order=True).to_list()
        rows = self._cache.known(wanted)
        missing = [key for key in wanted if key not in rows]
        for start in range(0, len(missing), KEYS_PER_CALL):
            some = missing[start : start + KEYS_PER_CALL]
            answers = dict(zip(some, self._ask(some), strict=True))
            self._cache.keep(answers)
            rows |= answers
        table = self._typed([rows[key] for key in wanted])
        at = pl.Series([*range(len(wanted))], dtype=pl.UInt32)
        order = keys.replace_strict(pl.Series(wanted, dtype=pl.String), at) if wanted else at
        return frame.hstack(table[order]) if wanted else frame.hstack(table)

    def _ask(self, keys: Sequence[str]) -> list[Any]:
        """A tuple of texts for each hash, a text for each other key, None where there is nothing."""
        if self._form != "hash":
            return list(self._server.ask(lambda client: client.mget(keys)))
        names = list(self._schema)

        def all_fields(client: Any) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.hmget(key, names)
            return list(pipe.execute())

        return self._server.ask(all_fields)

    def _typed(self, answers: Sequence[Any]) -> pl.DataFrame:
        names = list(self._schema)
        try:
            if self._form == "hash":
                texts = {
                    name: pl.Series(name, [_text(each[at]) for each in answers], dtype=pl.String)
                    for at, name in enumerate(names)
                }
                return pl.DataFrame(texts).select(map(self._cast, names))
            column = pl.Series(names[0], [_text(each) for each in answers], dtype=pl.String)
            if self._form == "text":
                return pl.DataFrame([column]).select(map(self._cast, names))
            decoded = column.str.json_decode(pl.Struct(dict(self._schema)))
            return decoded.struct.unnest()
        except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
            raise UserError(
                f"RedisLookup: the values of {self._server.place} do not fit columns=: {error}"
            ) from error

    def _cast(self, name: str) -> pl.Expr:
        kind = self._schema[name]
        column = pl.col(name)
        return column.cast(pl.Int8).cast(kind) if kind == pl.Boolean else column.cast(kind)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


class _Cache:
    """The newest answers, each for a while; pickled empty."""

    def __init__(self, size: int, for_s: float) -> None:
        self._size = size
        self._for_s = for_s
        self._answers: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_answers": OrderedDict()}

    def __len__(self) -> int:
        return len(self._answers)

    def known(self, keys: Sequence[str]) -> dict[str, Any]:
        since_s = time.monotonic() - self._for_s
        held = {key: self._answers[key] for key in keys if key in self._answers}
        return {key: answer for key, (at_s, answer) in held.items() if at_s >= since_s}

    def keep(self, answers: Mapping[str, Any]) -> None:
        now_s = time.monotonic()
        for key, answer in answers.items():
            self._answers[key] = (now_s, answer)
            self._answers.move_to_end(key)
        while len(self._answers) > self._size:
            self._answers.popitem(last=False)
