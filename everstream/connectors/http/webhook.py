"""Webhooks: records posted as JSON, with a key by which the receiver recognizes repetitions.

With `key=` each record is posted when it comes, under its own key; a replay gives the same keys if
the pipeline computes the same records. Without it, records are kept in the store until their
checkpoint is stable and are then posted in batches. No replay can change what a checkpoint
contains: a batch that is sent again has the same bytes and the same key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import polars as pl

from everstream.connectors.columns import as_frame
from everstream.connectors.files.json_lines import JsonEncoder
from everstream.connectors.files.parts import PartTransaction
from everstream.connectors.http.client import Endpoint, Poster, Request
from everstream.connectors.options import KeyTemplate, at_least_one
from everstream.connectors.refusing import encoded_or_refused
from everstream.connectors.staged import StagedTransaction, StagedWriter, waiting_folder
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer

ENDING: Final = ".jsonl"
LONGEST_NAME: Final = 150


class Webhook(Sink):
    """Posts records to a web server as JSON, each request with an `Idempotency-Key` header.

    With `key="order-{id}"`, or the name of a column: one request per record, at once. The key must
    identify the record, because a receiver treats two requests with one key as one. Without a key:
    one request per `batch` records of a checkpoint, a JSON list, when the checkpoint is stable.

    Idempotent: after a failure, requests are sent again under the same keys. A receiver that
    processes each key once sees every record once. Cut connections, timeouts, 5xx and 429 are
    retried for `patience`; any other answer ends the run. With `connections` above 1, requests may
    arrive in another order. `headers` (such as Authorization) and the URL are never stored.

    >>> orders = es.Pipeline("to-web").source(es.FromList([{"id": 7, "cents": 250}]))
    >>> hook = es.Webhook("https://example.org/orders", key="order-{id}")
    >>> pipeline = orders.sink(hook, shards=1)
    """

    delivery = Delivery.IDEMPOTENT

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        batch: int = 100,
        headers: Mapping[str, str] | None = None,
        connections: int = 1,
        timeout: str | float = "30s",
        patience: str | float = "60s",
    ) -> None:
        at_least_one(batch=batch, connections=connections)
        self._address = Endpoint(url, headers or {}, seconds(timeout), seconds(patience))
        self._key = None if key is None else KeyTemplate(key)
        self._batch = batch
        self._connections = connections

    def open(self, shard: SinkShard) -> Writer:
        if self._key is not None:
            return _RecordWriter(self._address, shard, self._key, self._connections)
        return _BatchWriter(shard, Sending(self._address, self._batch, self._connections))

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        if self._key is None:
            waiting_folder(store, operator, ENDING).start_fresh(pipeline, operator, replace)


class _RecordWriter(Writer):
    def __init__(
        self, address: Endpoint, shard: SinkShard, key: KeyTemplate, connections: int
    ) -> None:
        self._shard = shard
        self._key = key
        self._encoder = JsonEncoder(shard.operator)
        self._address = address
        self._connections = connections
        self._poster: Poster | None = None

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        requests = encoded_or_refused(batch, self._requests, self._shard.operator)
        if self._poster is None:
            self._poster = self._address.opened(self._connections)
        self._poster.post_all(requests)

    def _requests(self, batch: Batch) -> list[Request]:
        lines = self._encoder.encode(batch).split(b"\n")[:-1]
        return [Request(*both) for both in zip(self._keys(batch), lines, strict=True)]

    def _keys(self, batch: Batch) -> list[str]:
        operator = self._shard.operator
        if not isinstance(batch, pl.DataFrame) and isinstance(batch[0], dict):
            columns = self._key.columns  # other columns need not be valid
            batch = [{name: record[name] for name in columns if name in record} for record in batch]
        return self._key.of(as_frame(batch, operator), f"operator '{operator}'").to_list()

    def close(self) -> None:
        if self._poster is not None:
            self._poster.close()
            self._poster = None


@dataclass(frozen=True)
class Sending:
    """How pending records become requests; belongs to the run that sends them, never saved."""

    address: Endpoint
    batch: int
    connections: int

    def send(self, name: str, lines: list[bytes]) -> None:
        poster = self.address.opened(self.connections)
        try:
            starts = range(0, len(lines), self.batch)
            poster.post_all(
                [
                    Request(
                        f"{name}-{number}",
                        b"[" + b",".join(lines[start : start + self.batch]) + b"]",
                    )
                    for number, start in enumerate(starts)
                ]
            )
        finally:
            poster.close()


@dataclass
class WebhookTransaction(StagedTransaction, word="webhook-transaction"):
    """Records waiting to be posted.

    The batch size is that of the run that wrote them, so that a batch stays the same.
    """

    batch: int
    target: Sending | None = field(default=None, repr=False, compare=False, kw_only=True)

    def deliver(self) -> None:
        assert self.target is not None
        try:
            with self.content() as file:
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return  # all of them were already posted
        replace(self.target, batch=self.batch).send(self.name, lines)

    @property
    def name(self) -> str:
        """The prefix of the keys of its requests, different from that of all other records.

        The token was drawn when the records were first written: a run that rolls back and computes
        others for a checkpoint of the same number has another.
        """
        part, token = self.part.part, self.part.pending.token
        return f"{part.owner[:LONGEST_NAME]}-{part.shard}-{part.checkpoint}-{token}"


class _BatchWriter(StagedWriter):
    def __init__(self, shard: SinkShard, sending: Sending) -> None:
        super().__init__(shard, ENDING)
        self._encoder = JsonEncoder(shard.operator)
        self._sending = sending

    def encode(self, batch: Batch) -> bytes:
        return encoded_or_refused(batch, self._encoder.encode, self._shard.operator)

    def stage(self, part: PartTransaction) -> WebhookTransaction:
        return WebhookTransaction(part, part.checkpoint, self._sending.batch)

    def target(self) -> Sending:
        return self._sending
