"""The adviser takes micro-batches only where something speaks for them and nothing against."""

from everstream.planning.adviser import advise, choose


def test_tasks_are_the_answer_if_nothing_is_said() -> None:
    assert choose(shards=64).engine == "tasks"


def test_many_shards_per_slot_and_time_to_wait_make_it_micro_batches() -> None:
    assert choose(shards=64, slots=8, max_latency_s=5.0).engine == "microbatch"
    assert choose(shards=64, slots=8).engine == "tasks", "nobody has said that results can wait"
    assert choose(shards=64, slots=8, max_latency_s=0.1).engine == "tasks"
    assert choose(shards=16, slots=8, max_latency_s=5.0).engine == "tasks"
    assert choose(shards=64, slots=8, max_latency_s=5.0, cycles=True).engine == "tasks"


def test_forbidden_sockets_leave_no_choice_and_that_is_said() -> None:
    assert choose(shards=2, sockets=False).engine == "microbatch"
    hurried = choose(shards=2, sockets=False, max_latency_s=0.05)
    assert hurried.engine == "microbatch" and "cannot be promised" in (hurried.warning or "")
    round_and_round = choose(shards=2, sockets=False, cycles=True)
    assert round_and_round.engine == "microbatch"
    assert "one hop per epoch" in (round_and_round.warning or "")


def test_advice_names_the_engine_and_a_protocol_that_it_has() -> None:
    advice = advise(
        rate=50_000, capacity=150_000, mtbf="1m", state_size="1GB", shards=64, sockets=False,
        max_latency="500ms", exactly_once=False,
    )  # fmt: skip
    assert (advice.engine, advice.protocol) == ("microbatch", "aligned")
    assert "microbatch: workers may not open sockets" in str(advice)
    assert any("at the end of its epoch" in warning for warning in advice.warnings)


def test_advice_for_a_cycle_without_sockets_says_what_becomes_of_it() -> None:
    advice = advise(
        rate=50_000, capacity=150_000, mtbf="1m", state_size="1GB", cycles=True, sockets=False
    )
    assert (advice.engine, advice.protocol) == ("microbatch", "aligned")
    assert "waits for the next epoch" in str(advice)
    assert any("one hop per epoch" in warning for warning in advice.warnings)
