"""The format "everstream" of `spark.read` and `spark.readStream`.

Spark creates one of these in a separate process to plan a query, and sends the readers to its
tasks. All of them only read the store. `df.writeStream` writes to a topic, which is a separate folder.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import StructType

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.engine.spark.launcher import SPARK, require
from everstream.errors import UserError
from everstream.inspection.checkpoints import choose, survey_of
from everstream.inspection.datasource import checkpoints, output, state, topic
from everstream.inspection.datasource.asked import Asked, What
from everstream.inspection.datasource.committed import outputs_of
from everstream.inspection.datasource.stream_before_42 import StreamOffsets
from everstream.inspection.operator_state import require_operator


class EverstreamSource(DataSource):
    """The contents of a store, as a table or a stream.

    Options: `store` (or `.load(store)`), `what` ("output", "state", "checkpoints", "dead_letters",
    "topic"), `operator`, `epoch` and `rows` of state, `verify` of checkpoints, `store_key`. Default of `what`: the output,
    unless `operator` names one that keeps none; then its state.
    """

    @classmethod
    def name(cls) -> str:
        return "everstream"

    def schema(self) -> StructType | str:
        asked = self._asked()
        match asked.what or _what_there_is(asked):
            case "state":
                return state.rows_schema(asked) if asked.rows else state.COLUMNS
            case "checkpoints":
                return checkpoints.COLUMNS
            case "dead_letters":
                return output.DEAD_LETTER_COLUMNS
            case "topic":
                return topic.Topic(asked.store).schema()
            case "output":
                return output.output_schema(asked.of_kind("output"))

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = self._asked()
        match asked.what or _what_there_is(asked):
            case "state":
                kind = state.RowsReader if asked.rows else state.StateReader
                return kind(asked.of_kind("state"), schema)
            case "checkpoints":
                return checkpoints.CheckpointsReader(asked, schema)
            case "topic":
                return topic.TopicReader(asked.store, schema)
            case "dead_letters" | "output" as what:
                return output.OutputReader(asked.of_kind(what), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        asked = self._asked()
        what = asked.what or "output"
        if what == "topic":
            return _stream(topic.TopicOffsets(asked.store, schema))
        if what not in ("output", "dead_letters"):
            raise UserError(
                f"{what} cannot be read as a stream; output, dead_letters and topic can. Use "
                "spark.read."
            )
        return _stream(output.OutputOffsets(asked.of_kind(what), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        require('df.writeStream.format("everstream")', (4, 1))
        from everstream.inspection.datasource.topic_writer import topic_writer

        return topic_writer(self.options, schema, overwrite)

    def _asked(self) -> Asked:
        return Asked.of(self.options)


def _stream(offsets: StreamOffsets) -> DataSourceStreamReader:
    if SPARK < (4, 2):
        from everstream.inspection.datasource.stream_before_42 import EarlierOutputStream

        return EarlierOutputStream(offsets)
    from everstream.inspection.datasource.stream_since_42 import OutputStream

    return OutputStream(offsets)


def _what_there_is(asked: Asked) -> What:
    """The default of `what`: state for an operator without output."""
    if asked.operator is None:
        return "output"
    survey, _ = survey_of(asked.open())
    manifest = EpochManifest.from_json(choose(survey, asked.epoch).body)
    require_operator(manifest, asked.operator)
    return "output" if asked.operator in outputs_of(manifest, asked.store) else "state"
