"""Annotated programs give as pipelines what they give when called, also through crashes."""

import traceback
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import everstream as es
from everstream.annotations.loop import LARGEST_BATCH, READS, AdaptiveBatchSize, resumed
from everstream.connectors import Reader
from everstream.engine.result import RunResult
from everstream.errors import UserError
from everstream.pipeline.source import END
from everstream.state.backends.memory import MemoryBackend
from tests.annotations.inventing import invented
from tests.annotations.simulating import function_of, module_of, simulated

LIMIT = 25


def agree(text: str, folder: Path, *arguments: Any, seed: int = 1, **given: Any) -> RunResult:
    """Run a program both ways; they must return the same."""
    main = function_of(text, **given)
    result = simulated(main.pipeline(*arguments), folder, seed)
    assert result.returned == main(*arguments), text
    return result


def stage_of(pipeline: es.Pipeline, name: str) -> tuple[es.Operator, es.Context]:
    """A stage as a shard has it, and a context for it."""
    stage = cloudpickle.loads(cloudpickle.dumps(pipeline.graph.nodes[name].what))
    return stage, es.Context(name, 0, 1, MemoryBackend())


def check_invented(seed: int, folder: Path) -> None:
    text = invented(seed)
    main = function_of(text, f"invented{seed}")
    called = main(LIMIT, seed)
    result = simulated(main.pipeline(LIMIT, seed), folder, seed)
    assert result.returned == called, f"seed {seed}:\n{text}"


@pytest.mark.parametrize("seed", range(14))
def test_invented_programs_give_through_crashes_what_they_give_when_called(
    seed: int, tmp_path: Path
) -> None:
    check_invented(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 250))
def test_many_more_invented_programs_give_what_they_give_when_called(
    seed: int, tmp_path: Path
) -> None:
    check_invented(seed, tmp_path)


def test_farms_of_different_sizes_keep_the_order_of_the_loop(tmp_path: Path) -> None:
    text = """
@es.annotated
def main(limit):
    seen = []
    with es.ToStream(batch=2):
        for n in range(limit):
            with es.Stage(replicate=2):
                a = n + 1
            with es.Stage(replicate=3):
                b = a * 2
            with es.Stage():
                c = b + 1
            with es.Stage(replicate=2):
                d = c * 2
            with es.Stage(state=[seen]):
                seen.append((n, d))
    return seen
"""
    agree(text, tmp_path, 30)


def test_state_that_travels_on_is_the_state_at_that_item(tmp_path: Path) -> None:
    text = """
@es.annotated
def main(limit):
    seen, sizes = [], []
    with es.ToStream(batch=4):
        for n in range(limit):
            with es.Stage(state=[seen]):
                seen.append(n)
            with es.Stage(state=[sizes]):
                sizes.append((len(seen), sum(seen)))
    return sizes
"""
    agree(text, tmp_path, 12)


def test_dicts_with_defaults_are_cut_by_key_and_come_back_as_what_they_were(
    tmp_path: Path,
) -> None:
    text = """
from collections import Counter, defaultdict

@es.annotated
def main(words):
    counts, places = Counter(a=3), defaultdict(list)
    with es.ToStream(batch=2):
        for number, word in enumerate(words):
            with es.Stage(state=[counts, places], key=word, replicate=3):
                counts[word] += 1
                places[word].append(number)
    return type(counts).__name__, counts, places
"""
    agree(text, tmp_path, [*"abracadabra"])


def test_an_inner_function_sees_what_is_around_it(tmp_path: Path) -> None:
    factor = 7
    seen: list[int] = []

    @es.annotated
    def main(limit: int, *, start: int = 1) -> int:
        total = 0
        with es.ToStream():
            for n in range(start, limit):
                with es.Stage(state=[total]):
                    total += n * factor
        seen.append(total)
        return total

    assert main(5) == 70 and seen == [70]
    assert simulated(main.pipeline(5, start=2), tmp_path).returned == main(5, start=2)


def test_names_of_the_user_never_meet_those_of_the_pipeline(tmp_path: Path) -> None:
    text = """
@es.annotated
def main(self, items):
    out, ctx, batch = [], 2, 3
    with es.ToStream(state=[ctx], batch=3):
        for item in items:
            ctx += item
            if ctx % 2: continue
            with es.Stage(replicate=2, on_error="skip"):
                error = item + batch
                pipeline = 10 // (error - 5)
            with es.Stage(state=[out]):
                out.append((item, error, pipeline, self, ctx))
    return out
"""
    agree(text, tmp_path, "me", range(20))


# Hooks.

HOOKED = """
calls = []
def load(): calls.append("init"); return {"factor": 3}
def leave(model): calls.append(("exit", model["factor"]))
def snap(number): calls.append(("snap", number))
def plain_snap(): calls.append("snap")
def complain(error, item):
    if item == 8: raise error
    calls.append((type(error).__name__, item))

@es.annotated
def main(items):
    total = 0
    with es.ToStream(batch=2):
        for n in items:
            with es.Stage(on_init=load, on_exit=leave, on_snapshot=snap, on_error=complain) as model:
                m = model["factor"] * (60 // n)
            with es.Stage(state=[total], on_snapshot=plain_snap):
                total += m
    return total
"""


def test_hooks_are_called_in_a_plain_call_where_a_run_would_call_them() -> None:
    names = module_of(HOOKED)
    assert names["main"]([1, 0, 2]) == 3 * (60 + 30)
    assert names["calls"] == ["init", ("ZeroDivisionError", 0), ("snap", 1), ("exit", 3), "snap"]


def test_items_that_raise_are_left_out_by_a_run_as_by_a_call(tmp_path: Path) -> None:
    agree(HOOKED, tmp_path, [1, 0, 2, 0, 5, 6], seed=3)


def test_an_error_hook_that_raises_fails_the_call_and_the_run() -> None:
    main = function_of(HOOKED.replace("60 // n", "60 // (n - 8)"))
    with pytest.raises(ZeroDivisionError):
        main([1, 8])
    stage, ctx = stage_of(main.pipeline([1, 8]), "stage-1")
    stage.on_start(ctx)
    with pytest.raises(ZeroDivisionError):
        stage.process_batch([1, 8], ctx)


def test_outputs_of_the_last_stage_are_collected_in_order(tmp_path: Path) -> None:
    text = """
@es.annotated
def main(limit):
    with es.ToStream(batch=2):
        for n in range(limit):
            with es.Stage(replicate=3):
                square = n * n
            with es.Stage(outputs=[n, square], ordered=True):
                square += 1
"""
    result = agree(text, tmp_path, 9)
    assert result.collected("output") == [(n, n * n + 1) for n in range(9)]


# What it is made of.


def test_tracebacks_lead_to_the_lines_of_the_user() -> None:
    text = """
@es.annotated
def main(limit):
    with es.ToStream():
        for n in range(limit):
            with es.Stage():
                print(1 // (n - n))
"""
    main = function_of(text, "mine")
    stage, ctx = stage_of(main.pipeline(3), "stage-1")
    with pytest.raises(ZeroDivisionError) as failed:
        stage.process_batch([1], ctx)
    last = traceback.extract_tb(failed.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == ("<mine>", 8)
    with pytest.raises(ZeroDivisionError) as raised:
        main(3)
    assert traceback.extract_tb(raised.value.__traceback__)[-1].lineno == 8


def test_what_stands_behind_the_regions_and_raises_is_the_users_error(tmp_path: Path) -> None:
    text = """
@es.annotated
def main(limit):
    total = 0
    with es.ToStream():
        for n in range(limit):
            with es.Stage(state=[total]):
                total += n
    return 1 // (total - total)
"""
    main = function_of(text)
    with pytest.raises(UserError, match="after its regions raised"):
        simulated(main.pipeline(3), tmp_path, faults=False)


def test_a_pipeline_travels_as_a_value() -> None:
    main = function_of(HOOKED)
    pipeline = main.pipeline([1, 2])
    again = cloudpickle.loads(cloudpickle.dumps(pipeline))
    assert list(again.graph.nodes) == ["source", "stage-1", "stage-2", "result"]


def test_wrong_arguments_are_refused_with_the_name_of_the_function() -> None:
    main = function_of(HOOKED)
    with pytest.raises(UserError, match=r"main.pipeline\(...\): missing a required argument"):
        main.pipeline()


def test_a_loop_goes_on_where_it_was_from_its_offset() -> None:
    text = """
@es.annotated
def main(limit):
    last = 0
    with es.ToStream(state=[last], batch=3):
        for n in iter(range(limit)):
            last += n
            if n % 4 == 1: continue
            with es.Stage():
                print(n, last)
"""
    source = function_of(text).pipeline(20).graph.nodes["source"].what
    assert isinstance(source, es.Source)

    def rest(reader: Reader) -> list[Any]:
        found: list[Any] = []
        while (batch := reader.read()) is not END:
            found += batch or []  # type: ignore[operator]
        return found

    reader = source.open(0, 1)
    whole = rest(source.open(0, 1))
    first = [*(reader.read() or []), *(reader.read() or [])]  # type: ignore[misc]
    offset = reader.offset
    reader.read()
    other = source.open(0, 1)
    other.seek(offset)
    assert first + rest(other) == whole


def test_something_shorter_than_before_is_noticed() -> None:
    assert list(resumed(range(5), 3)) == [3, 4]
    assert list(resumed(iter("abcde"), 3)) == ["d", "e"]
    with pytest.raises(UserError, match="must give the same again"):
        resumed(iter("ab"), 3)


def test_batches_grow_while_they_take_no_time_and_shrink_when_they_take_long() -> None:
    now = 0.0
    pace = AdaptiveBatchSize(None, lambda: now)
    sizes = []
    for _ in range(READS * 10):
        now += 0.0001
        sizes.append(pace.want())
    assert sizes[0] == 1 and sizes[-1] == LARGEST_BATCH and sizes == sorted(sizes)
    for _ in range(READS * 10):
        now += 1.0
        sizes.append(pace.want())
    assert sizes[-1] == 1
    assert AdaptiveBatchSize(7, lambda: now).want() == 7
