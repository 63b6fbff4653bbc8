"""The operator behind `stream.map_async`.

Records wait here until their answers are there. They, and the answers that cannot leave yet, are part
of every checkpoint. With replay="logged" an answer is also written to a log before it leaves
(`result_log.py`); after a failure, records find their answers there.

A watermark waits behind the records that came before it, so records keep their place in event time.
"""

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from everstream.errors import InternalError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.calls.attempts import Answer
from everstream.pipeline.calls.options import CallOptions
from everstream.pipeline.calls.performers import Call, Performer, ThreadedCalls, VirtualCalls
from everstream.pipeline.calls.result_log import Position, ResultLog, content_key
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.rejects import Rejected

WAITING_PER_CALL: Final = 4
"""Records that an operator takes in, for each call that it may have under way."""
_PENDING, _COVERED, _ANSWERS, _NAME = "pending", "covered", "answers", "log"


@dataclass
class CallGroup:
    """The records between two watermarks, in the order they came."""

    calls: dict[int, Call] = field(default_factory=dict)
    """By `id`, those that have not left."""
    ready: list[Call] = field(default_factory=list)
    """Those of them that may leave, if order does not matter."""
    watermark: int | None = None
    """What comes after them; None if that is not known yet."""

    def take(self, *, ordered: bool) -> list[Call]:
        """Those that may leave now."""
        if ordered:
            taken = []
            for call in self.calls.values():
                if not call.saved:
                    break
                taken.append(call)
        else:
            taken, self.ready = self.ready, []
        for call in taken:
            del self.calls[id(call)]
        return taken


class MapAsync(Operator):
    """Replaces each record by the answer to a call."""

    announces_watermarks = True
    holds_records = True

    def __init__(self, function: Callable[[Any], Any], options: CallOptions) -> None:
        self.function = function
        self.options = options

    def describe_state(self) -> dict[str, Any]:
        return {"operator": "map_async"}

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        pending: list[Any] = []
        covered: dict[str, Position] = {}
        answers: list[Any] = []
        name = ""
        for number, states in parts.items():
            kept = states.get(CONTEXT_STATE, {})
            calls = [one for one in kept.get(_PENDING, ()) if len(one) > 1]
            pending += _owned(calls, number, place)
            answers += _owned(kept.get(_ANSWERS, ()), number, place)
            covered.update(kept.get(_COVERED, {}))
            name = kept.get(_NAME, name)
        state = {_PENDING: pending, _COVERED: covered, _ANSWERS: answers, _NAME: name}
        return {CONTEXT_STATE: {key: value for key, value in state.items() if value}}

    # A generation begins and ends.

    def on_start(self, ctx: Context) -> None:
        self._ctx = ctx
        self._by_content = ctx.keying is not None and ctx.keying.selector is content_key
        self._capacity = WAITING_PER_CALL * self.options.concurrency
        self._groups: deque[CallGroup] = deque([CallGroup()])
        self._group_of: dict[int, CallGroup] = {}
        self._cached: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._same: dict[str, list[Call]] = {}
        """Calls for which an equal one is under way."""
        self._answers: defaultdict[str, deque[Answer]] = defaultdict(deque)
        """Content key -> answers that were logged and wait for their record."""
        self._keys: dict[str, Any] = {}
        self._covered: dict[str, Position] = dict(ctx.state.get(_COVERED, {}))
        self._captures: dict[int, Position] = {}
        self._stable: deque[Position] = deque()
        log = self._open_log(ctx)
        self._log = log
        self._performer = self._make_performer(ctx, log)
        self._restore(ctx)

    def _open_log(self, ctx: Context) -> ResultLog | None:
        blobs = ctx.services.blobs
        if self.options.replay != "logged" or blobs is None:
            return None
        log = ResultLog(blobs, ctx.operator, ctx.shard, ctx.shards, ctx.generation)
        for key, content, value, error in ctx.state.get(_ANSWERS, ()):
            self._remember(key, content, Answer(value, error))
        entries = log.live(self._covered, [ctx.operator, ctx.state.get(_NAME, ctx.operator)])
        owned = self._owns(ctx, [entry[0] for entry in entries])
        for (key, content, value, error), mine in zip(entries, owned, strict=True):
            if mine:
                self._remember(key, content, Answer(value, error))
        return log

    def _owns(self, ctx: Context, keys: list[Any]) -> list[bool]:
        if ctx.keying is None or ctx.shards == 1 or not keys:
            return [True] * len(keys)
        mine = ctx.keying.shards_of(keys, ctx.shards) == ctx.shard
        return mine.tolist()  # type: ignore[no-any-return]

    def _remember(self, key: Any, content: str, answer: Answer) -> None:
        self._answers[content].append(answer)
        self._keys[content] = key

    def _make_performer(self, ctx: Context, log: ResultLog | None) -> Performer:
        delay_s = ctx.services.delay_s
        if delay_s is not None:
            now_s = ctx.services.now_s
            return VirtualCalls(self.function, self.options, ctx.shards, log, now_s, delay_s)
        return ThreadedCalls(
            self.function, self.options, ctx.shards, log, ctx.poke, f"{ctx.operator}-{ctx.shard}"
        )

    def _restore(self, ctx: Context) -> None:
        """Records that were waiting at the checkpoint are asked again, unless they have answers."""
        calls: list[Call] = []
        for one in ctx.state.get(_PENDING, ()):
            if len(one) == 1:
                self._on_watermark(one[0])
                continue
            key, record, known = one
            call = self._call(key, record, 0.0)
            if known is not None:
                call.answer, call.saved = Answer(*known), True
            calls.append(call)
            self._add(call)
        self._admit(calls)
        if ctx.watermark > ctx.announced:
            self._on_watermark(ctx.watermark)
        self._note(ctx)

    def on_stop(self, ctx: Context) -> None:
        performer = self.__dict__.get("_performer")
        if performer is not None:
            performer.close()

    # Records and watermarks come in.

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        keys = ctx.keying.keys(batch) if ctx.keying is not None else [None] * len(batch)
        born_s = ctx.moment.born_s
        calls = [
            self._call(key, record, born_s)
            for key, record in zip(keys, records_of(batch), strict=True)
        ]
        for call in calls:
            self._add(call)
        self._admit(calls)
        self._note(ctx)

    def _call(self, key: Any, record: Any, born_s: float) -> Call:
        content = ""
        if self._by_content:
            content = key
        elif self.options.replay == "logged" or self.options.cache is not None:
            content = content_key(record)
        return Call(key, record, content, born_s, keeps_errors=self._ctx.on_error != "fail")

    def _add(self, call: Call) -> None:
        if self._groups[-1].watermark is not None:
            self._groups.append(CallGroup())
        group = self._groups[-1]
        group.calls[id(call)] = call
        self._group_of[id(call)] = group

    def _admit(self, calls: list[Call]) -> None:
        """Answer from the log or the cache, wait for an equal call, or make the call."""
        asked, known = [], []
        for call in calls:
            if call.saved:
                self._finish(call)
            elif self._log is not None and self._answers.get(call.content):
                answers = self._answers[call.content]
                call.answer, call.saved = answers.popleft(), True
                if not answers:
                    del self._answers[call.content], self._keys[call.content]
                self._finish(call)
            elif self.options.cache is None:
                asked.append(call)
            elif (answer := self._from_cache(call)) is not None:
                call.answer = answer
                known.append(call)
            elif (same := self._same.get(self._cache_key(call))) is not None:
                same.append(call)
            else:
                self._same[self._cache_key(call)] = []
                asked.append(call)
        if asked:
            self._performer.submit(asked)
        self._answered(known)

    def _answered(self, calls: list[Call]) -> None:
        """These have answers that no call has logged."""
        if calls and self._log is not None:
            self._performer.log_only(calls)
            return
        for call in calls:
            call.saved = True
            self._finish(call)

    def _cache_key(self, call: Call) -> str:
        cache = self.options.cache
        assert cache is not None
        return call.content if cache.key is None else content_key(cache.key(call.record))

    def _from_cache(self, call: Call) -> Answer | None:
        key = self._cache_key(call)
        expires_s, answer = self._cached.get(key, (0.0, None))
        if answer is None or expires_s <= self._ctx.now_s:
            return None
        self._cached.move_to_end(key)
        return answer

    def _finish(self, call: Call) -> None:
        self._group_of.pop(id(call)).ready.append(call)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        if len(self._groups) == 1 and not self._groups[0].calls:
            ctx.advance_watermark(watermark)
        else:
            self._on_watermark(watermark)

    def _on_watermark(self, watermark: int) -> None:
        self._groups[-1].watermark = watermark

    # Answers leave.

    def on_answers(self, ctx: Context) -> Iterator[None]:
        """Emit what is there; yields when there is output or a watermark to pass on."""
        for call in self._performer.take():
            self._learn(call)
            call.saved = True
            self._finish(call)
        while True:
            group = self._groups[0]
            taken = group.take(ordered=self.options.ordered)
            if taken:
                self._emit(taken, ctx)
            ends = not group.calls and group.watermark is not None
            if ends:
                assert group.watermark is not None
                ctx.advance_watermark(group.watermark)
                self._groups.popleft()
                if not self._groups:
                    self._groups.append(CallGroup())
            if taken:
                yield
            if not ends:
                break
        self._note(ctx)

    def _learn(self, call: Call) -> None:
        """Keep an answer in the cache, and give it to equal records that have waited for it."""
        cache, answer = self.options.cache, call.answer
        if cache is None or answer is None or (key := self._cache_key(call)) not in self._same:
            return
        same = self._same.pop(key)
        if answer.error or answer.raised is not None:
            for one in same[:1]:  # it asks for itself, and the others wait for it
                self._same[key] = same[1:]
                self._performer.submit([one])
            return
        self._cached[key] = (self._ctx.now_s + cache.expire_s, answer)
        self._cached.move_to_end(key)
        while len(self._cached) > cache.entries:
            self._cached.popitem(last=False)
        for one in same:
            one.answer = answer
        self._answered(same)

    def _emit(self, calls: list[Call], ctx: Context) -> None:
        values = []
        for call in calls:
            answer = call.answer
            assert answer is not None
            if not answer.error and answer.raised is None:
                values.append(answer.value)
            elif answer.raised is not None:
                ctx.show(call.record)
                ctx.reject(call.record, answer.raised)
            else:
                ctx.leave_out(Rejected(call.record, answer.error))
        ctx.emit_batch(values)
        born_s = calls[0].born_s
        if born_s:
            ctx.moment.born_s = born_s

    def _note(self, ctx: Context) -> None:
        """Tell the engine how much is here, and when there is something to emit."""
        ctx.pending = sum(len(group.calls) for group in self._groups)
        ctx.room = max(0, self._capacity - ctx.pending)
        ctx.answers_at_s = -math.inf if self._may_leave() else self._performer.next_s

    def _may_leave(self) -> bool:
        first = self._groups[0]
        if not first.calls:
            return first.watermark is not None
        if not self.options.ordered:
            return bool(first.ready)
        return next(call.saved for call in first.calls.values())

    def on_end(self, ctx: Context) -> None:
        if ctx.pending:
            raise InternalError(f"the input ended with {ctx.pending} calls under way")

    # Checkpoints.

    def before_checkpoint(self, ctx: Context) -> None:
        arrived, number = self._performer.seal()
        known = {*map(id, arrived)}
        pending: list[tuple[Any, ...]] = []
        for group in self._groups:
            for call in group.calls.values():
                saved = None
                if call.lasts and (call.saved or id(call) in known):
                    assert call.answer is not None
                    saved = (call.answer.value, call.answer.error)
                pending.append((call.key, call.record, saved))
            if group.watermark is not None:
                pending.append((group.watermark,))
        _put(ctx, _PENDING, pending)
        if self._log is None:
            return
        answers = [
            (self._keys[content], content, answer.value, answer.error)
            for content, waiting in self._answers.items()
            for answer in waiting
        ]
        _put(ctx, _ANSWERS, answers)
        self._captures[ctx.checkpoint] = (ctx.generation, number)
        self._covered[self._log.place] = (ctx.generation, number)
        ctx.state.put(_COVERED, dict(self._covered))
        ctx.state.put(_NAME, ctx.operator)

    def on_commit(self, checkpoint: int, ctx: Context) -> None:
        """What all checkpoints that the run may still roll back to cover is removed from the log."""
        if "_performer" not in self.__dict__ or self._log is None:
            return  # it had ended before this generation began
        covered = [number for number in self._captures if number <= checkpoint]
        if not covered:
            return
        self._stable.append(self._captures[max(covered)])
        for number in covered:
            del self._captures[number]
        if len(self._stable) >= ctx.services.retention.newest:
            self._performer.prune(self._stable.popleft())


def _put(ctx: Context, name: str, value: list[Any]) -> None:
    if value or name in ctx.state:
        ctx.state.put(name, value)


def _owned(entries: Any, number: int, place: Place) -> list[Any]:
    """Of what one earlier shard kept, the part that comes to this one."""
    if place.keying:
        owned = place.owns([entry[0] for entry in entries])
        return [entry for entry, mine in zip(entries, owned, strict=True) if mine]
    return list(entries) if place.inherits(number) else []
