"""`transform_with_state`: runs a subclass of PySpark's `StatefulProcessor` as an operator.

`init` is called once when the pipeline is defined, as Spark calls it on its driver, to learn which state
variables there are. They become declared state of an operator class that is made for this processor, so
that everything that holds for declared state holds for them: checkpoints, rescaling, inspection, state on
disk. In each shard `init` is called again with a handle that gives access to the state.

Where Spark works in micro-batches, a batch here is what has arrived: `handleInputRows` is called once for
each key of a batch, with its rows in their order. Timers are timers of `ctx.timers`.
"""

import copy
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final

import polars as pl
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)
from pyspark.sql.types import Row

from everstream.errors import UserError
from everstream.pipeline.aggregation.local_parts import LATE
from everstream.pipeline.batch import Batch, columns_of, records_of
from everstream.pipeline.event_time.timers import TimeKind
from everstream.pipeline.keyed_state.spreading import Spread
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.rejects import Rejected, describe
from everstream.pipeline.times import NO_WATERMARK, TimeOf
from everstream.processors.schemas import Fields, OutputColumns, schema_of
from everstream.processors.variables import EXPIRES, Variable, VariableKind

_MODES: Final[dict[str, TimeKind | None]] = {
    "none": None,
    "processingtime": "processing",
    "eventtime": "event",
}
_INITIAL: Final = "initial state"
"""In `ctx.state`: whether the initial state was handled."""


def operator_for(
    processor: Any,
    output_schema: Any,
    time_mode: str,
    output_mode: str,
    initial_state: Any,
    pandas: bool,
    time: TimeOf | None,
) -> "ProcessorOperator":
    """The operator that runs a processor; a UserError if it cannot run as it is."""
    if isinstance(processor, type) or not isinstance(processor, StatefulProcessor):
        raise UserError(
            "transform_with_state takes an instance of a subclass of "
            f"pyspark.sql.streaming.StatefulProcessor, not {processor!r}."
        )
    mode = str(time_mode).replace("_", "").lower()
    if mode not in _MODES:
        raise UserError(
            f"time_mode={time_mode!r} is not valid: use 'None', 'ProcessingTime' or 'EventTime'."
        )
    if str(output_mode).lower() not in ("append", "update"):
        raise UserError(
            f"output_mode={output_mode!r} is not valid: use 'Append' or 'Update'. Rows are emitted as "
            "the processor returns them with both."
        )
    if mode == "eventtime" and time is None:
        raise UserError(
            "time_mode='EventTime' needs the time of records: put .event_time(...) after each source."
        )
    name = type(processor).__name__
    variables = _declared_by(processor, _MODES[mode])
    columns = OutputColumns(schema_of(output_schema, name), f"the output of {name}")
    made: type[ProcessorOperator] = type(name, (ProcessorOperator,), {})
    for variable in variables:
        attribute = variable.name if not hasattr(made, variable.name) else f"{variable.name}_"
        keyed = variable.declared()
        setattr(made, attribute, keyed)
        keyed.__set_name__(made, attribute)
    initial = None if initial_state is None else _frame(initial_state)
    return made(processor, variables, columns, mode, time, initial, pandas)


def _declared_by(processor: Any, mode: TimeKind | None) -> tuple[Variable, ...]:
    """What `init` declares, from a copy of the processor."""
    learning = _Declarations(type(processor).__name__, mode)
    own = copy.copy(processor)
    own.init(learning)
    own.close()
    return tuple(learning.variables.values())


def _frame(initial_state: Any) -> pl.DataFrame:
    if hasattr(initial_state, "toArrow"):  # a DataFrame of Spark
        initial_state = pl.from_arrow(initial_state.toArrow())
    elif type(initial_state).__module__.partition(".")[0] == "pandas":
        initial_state = pl.from_pandas(initial_state)
    return columns_of(initial_state, "initial_state")


class _Declarations:
    """The handle that `init` gets when the pipeline is defined."""

    def __init__(self, processor: str, mode: TimeKind | None) -> None:
        self._processor = processor
        self._mode = mode
        self.variables: dict[str, Variable] = {}

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> "_Unready":
        return self._declare(stateName, "value", schema, None, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> "_Unready":
        return self._declare(stateName, "list", schema, None, ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: Any = None,
    ) -> "_Unready":
        return self._declare(stateName, "map", valueSchema, userKeySchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        self.variables.pop(stateName, None)

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            f"{self._processor}.init uses handle.{name}, which needs a key: use it in handleInputRows "
            "or handleExpiredTimer."
        )

    def _declare(
        self, name: str, kind: VariableKind, schema: Any, keys: Any, ttl_ms: Any
    ) -> "_Unready":
        where = f"state '{name}' of {self._processor}"
        if name in self.variables:
            raise UserError(f"{where} is declared twice in its init: give each its own name.")
        if ttl_ms is not None:
            if self._mode != "processing":
                raise UserError(
                    f"{where} has ttlDurationMs, which follows the clock: use "
                    "time_mode='ProcessingTime'."
                )
            if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or ttl_ms <= 0:
                raise UserError(f"{where}: ttlDurationMs={ttl_ms!r}: give milliseconds above 0.")
        self.variables[name] = Variable(
            name,
            kind,
            Fields(schema_of(schema, where), where),
            None if keys is None else Fields(schema_of(keys, where), f"the keys of {where}"),
            ttl_ms,
        )
        return _Unready(where)


class _Unready:
    """What `init` gets for a state variable when the pipeline is defined."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            f"{self._where}: {name}() is called in init, where there is no key: call it in "
            "handleInputRows or handleExpiredTimer."
        )


class _Handle:
    """What `init` gets in a shard."""

    def __init__(self, operator: "ProcessorOperator", ctx: Context) -> None:
        self._operator = operator
        self._ctx = ctx
        self._timers: dict[Hashable, set[int]] | None = None
        """The timers of each key, once they have been asked for."""
        self.starting = True
        """Whether `init` is running."""
        self.firing: set[int] = set()
        """The timer whose `handleExpiredTimer` is running: Spark deletes it afterwards."""

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> Any:
        return self._bound(stateName)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> Any:
        return self._bound(stateName)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: Any = None,
    ) -> Any:
        return self._bound(stateName)

    def deleteIfExists(self, stateName: str) -> None:
        if stateName in self._operator.bound:
            self._operator.bound[stateName].forget_all()

    def registerTimer(self, expiryTimestampMs: int) -> None:
        at_ms = int(expiryTimestampMs)
        self._ctx.timers.set(at_ms * 1000, str(at_ms), time=self._time())
        if self._timers is not None:
            self._timers.setdefault(self._ctx.key, set()).add(at_ms)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        at_ms = int(expiryTimestampMs)
        self._ctx.timers.cancel(str(at_ms), time=self._time())
        if self._timers is not None and (of_key := self._timers.get(self._ctx.key)):
            of_key.discard(at_ms)
            if not of_key:
                del self._timers[self._ctx.key]

    def listTimers(self) -> Iterator[int]:
        self._time()
        if self._timers is None:
            self._timers = {}
            for key, name, _ in self._ctx.timers.pending():
                if not name.startswith(EXPIRES):
                    self._timers.setdefault(key, set()).add(int(name))
        of_key = self._timers.get(self._ctx.key, set())
        return iter(sorted(of_key | self.firing, reverse=True))

    def _time(self) -> TimeKind:
        kind = _MODES[self._operator.mode]
        if kind is None:
            raise UserError(
                f"'{self._ctx.operator}' uses timers, which time_mode='None' does not have: use "
                "'ProcessingTime' or 'EventTime'."
            )
        return kind

    def _bound(self, name: str) -> Any:
        if not self.starting or name not in self._operator.bound:
            raise UserError(
                f"'{self._ctx.operator}': state '{name}' was not declared when the pipeline was "
                "defined: declare all state in init, always the same."
            )
        return self._operator.bound[name]


class ProcessorOperator(Operator):
    """Runs one processor; each processor gets a subclass, which declares its state variables."""

    spread: Spread = "broadcast"

    def __init__(
        self,
        processor: StatefulProcessor,
        variables: tuple[Variable, ...],
        columns: OutputColumns,
        mode: str,
        time: TimeOf | None,
        initial: pl.DataFrame | None,
        pandas: bool,
    ) -> None:
        self.processor = processor
        self.variables = variables
        self.columns = columns
        self.emits = columns.types
        self.mode = mode
        self.time = time if mode == "eventtime" else None
        self.initial = initial
        self.pandas = pandas
        self.bound: dict[str, Any] = {}

    def describe_state(self) -> dict[str, Any]:
        variables = {one.name: one.describe() for one in self.variables}
        about = {"operator": type(self).__name__, "time_mode": self.mode, "variables": variables}
        return about if self.initial is None else {**about, "initial_state": True}

    def on_start(self, ctx: Context) -> None:
        for variable in self.variables:
            attribute = variable.name
            if attribute not in self.__dict__["_keyed"]:
                attribute = f"{attribute}_"
            self.bound[variable.name] = variable.bound(self.__dict__["_keyed"][attribute], ctx)
        self.handle = _Handle(self, ctx)
        self.processor.init(self.handle)  # type: ignore[arg-type]  # as far as processors use it
        self.handle.starting = False
        if self.initial is not None and not ctx.state.get(_INITIAL, False):
            self._handle_initial_state(self.initial, ctx)
            ctx.state.put(_INITIAL, True)

    def on_stop(self, ctx: Context) -> None:
        self.processor.close()

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        if self.time is not None:
            batch = self._in_time(batch, self.time, ctx)
        if not len(batch):
            return
        timers, output = self._timer_values(ctx), list[tuple[Any, ...]]()
        assert ctx.keying is not None
        rows = _Rows(batch, self.pandas, ctx.operator)
        for key, numbers in _grouped(ctx.keying.keys(batch)).items():
            ctx.key = key
            mark = len(output)
            try:
                output += self._values(
                    self.processor.handleInputRows(_tuple(key), rows.of(numbers), timers)
                )
            except Exception as error:
                del output[mark:]
                self._reject(batch, numbers, error, ctx)
        self._emit(output, ctx)

    def on_timer(self, key: Any, name: str, at: int, ctx: Context) -> None:
        if name.startswith(EXPIRES):
            self.bound[name.removeprefix(EXPIRES)].expire()
            return
        at_ms, expire = int(name), self.processor.handleExpiredTimer
        self.handle.firing = {at_ms}
        try:
            returned = expire(
                _tuple(key),
                timerValues=self._timer_values(ctx),
                expiredTimerInfo=ExpiredTimerInfo(at_ms),
            )
            self._emit(list(self._values(returned)), ctx)
        finally:
            self.handle.firing = set()
        self.handle.deleteTimer(at_ms)

    def _in_time(self, batch: Batch, time: TimeOf, ctx: Context) -> Batch:
        """The batch without records that are late, as Spark leaves them out."""
        if ctx.watermark == NO_WATERMARK:
            return batch
        late = time.microseconds(time.read(batch, ctx.operator)) < ctx.watermark
        if not late.any():
            return batch
        frame = columns_of(batch, ctx.operator)
        ctx.emit_batch(frame.filter(late), LATE)
        return frame.filter(~late)

    def _values(self, returned: Any) -> Iterator[tuple[Any, ...]]:
        """The rows that a function of the processor returned, which it may make while we read them."""
        for one in returned if returned is not None else ():
            if not self.pandas:
                yield self.columns.values(one)
                continue
            names = list(one.columns)
            by_name = all(isinstance(name, str) for name in names)
            make: Any = Row(*names) if by_name else lambda *values: values
            rows = zip(one.itertuples(index=False, name=None), one.isna().to_numpy(), strict=True)
            for values, missing in rows:
                yield self.columns.values(make(*self._plain(names, values, missing)))

    def _plain(self, names: list[Any], values: tuple[Any, ...], missing: Any) -> list[Any]:
        """A row of pandas in plain values: it has floats where a column of integers has a gap."""
        plain = [None if gone else value for value, gone in zip(values, missing, strict=True)]
        for number, name in enumerate(names):
            value = plain[number]
            if isinstance(value, float) and value.is_integer():
                column = name if isinstance(name, str) else number
                plain[number] = int(value) if self.columns.is_integer(column) else value
        return plain

    def _emit(self, output: list[tuple[Any, ...]], ctx: Context) -> None:
        if output:
            ctx.emit_batch(self.columns.frame(output))

    def _reject(self, batch: Batch, numbers: list[int], error: Exception, ctx: Context) -> None:
        records = records_of(batch)
        for number in numbers:
            ctx.show(records[number])
            self.on_error(error, records[number], ctx)
            ctx.leave_out(Rejected(records[number], describe(error)))

    def _timer_values(self, ctx: Context) -> TimerValues:
        """As Spark has them: -1 without time, and a watermark of 0 before there is one."""
        if _MODES[self.mode] is None:
            return TimerValues(-1, -1)
        watermark_ms = 0 if ctx.watermark == NO_WATERMARK else ctx.watermark // 1000
        return TimerValues(int(ctx.now_s * 1000), watermark_ms)

    def _handle_initial_state(self, initial: pl.DataFrame, ctx: Context) -> None:
        """Each shard handles the rows of its own keys."""
        assert ctx.keying is not None
        keys = ctx.keying.keys(initial)
        shards: Any = ctx.keying.shards_of(keys, ctx.shards) if keys else []
        timers, rows = self._timer_values(ctx), _Rows(initial, self.pandas, ctx.operator)
        for key, numbers in _grouped(keys).items():
            if shards[numbers[0]] == ctx.shard:
                ctx.key = key
                for one in rows.of(numbers):
                    self.processor.handleInitialState(_tuple(key), one, timers)


class _Rows:
    """The rows of a batch, in the form of the processor."""

    def __init__(self, batch: Batch, pandas: bool, operator: str) -> None:
        self._frame: Any = None
        if pandas:
            self._frame = columns_of(batch, operator).to_pandas()
        elif isinstance(batch, pl.DataFrame) or not all(type(one) is dict for one in batch):
            frame = columns_of(batch, operator)
            self._make: Any = Row(*frame.columns)
            self._values: Any = frame.rows()
            self._structs = [
                n for n, kind in enumerate(frame.dtypes) if isinstance(kind, pl.Struct)
            ]
        else:
            self._make, self._values = None, batch

    def of(self, numbers: list[int]) -> Iterator[Any]:
        """The rows with these numbers; in pandas' form one frame of them."""
        if self._frame is not None:
            return iter([self._frame.iloc[numbers].reset_index(drop=True)])
        make, values = self._make, self._values
        if make is None:
            return (Row(*values[n])(*values[n].values()) for n in numbers)
        if self._structs:
            return (make(*self._with_rows(values[n])) for n in numbers)
        return (make(*values[n]) for n in numbers)

    def _with_rows(self, values: Iterable[Any]) -> list[Any]:
        """Structs as rows, as Spark has them."""
        return [_as_row(one) if n in self._structs else one for n, one in enumerate(values)]


def _as_row(value: Any) -> Any:
    if isinstance(value, dict):
        return Row(*value)(*map(_as_row, value.values()))
    return value


def _grouped(keys: list[Hashable]) -> dict[Hashable, list[int]]:
    """Key -> the numbers of its rows, in the order of their first ones."""
    groups: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    return groups


def _tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)
