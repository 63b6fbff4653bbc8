"""The options of a run are defined once, and everything else follows from the definition."""

import typing
from dataclasses import fields
from typing import Any

import pytest
from pyspark.sql import SparkSession

import everstream as es
from everstream.core.orders import TOLERABLE_FAILURES
from everstream.engine.reporting.listener import AnyListener
from everstream.engine.settings.options import RunConfig
from everstream.pipeline import options as defined
from everstream.pipeline.options import (
    GROUPS,
    OPTIONS,
    SETTINGS,
    RunOptions,
    RunOptionsDict,
    given_in,
    with_overrides,
)

FOR_TYPE_CHECKERS = {
    "SparkSession": SparkSession,
    "Kill": es.Kill,
    "AnyListener": AnyListener,
    "RunStatus": es.RunStatus,
    "Monitor": es.Monitor,
}
"""The definition imports these types for type checkers only."""


def test_the_keywords_of_run_are_the_options_with_the_same_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, kind in FOR_TYPE_CHECKERS.items():
        monkeypatch.setattr(defined, name, kind, raising=False)
    keywords = typing.get_type_hints(RunOptionsDict)
    types = typing.get_type_hints(RunOptions)
    inner = {group: typing.get_type_hints(kind) for group, kind in GROUPS.items()}
    wanted = {group: types[group] for group in GROUPS} | {
        name: inner[place.group][place.field] if place.group else types[place.field]
        for name, place in OPTIONS.items()
    }
    assert keywords == wanted
    assert not RunOptionsDict.__required_keys__


def test_no_field_is_left_out() -> None:
    in_groups = sum(len(fields(kind)) for kind in GROUPS.values())
    assert len(OPTIONS) == in_groups + len(fields(RunOptions)) - len(GROUPS)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_one_sentence_of_help_and_a_default_in_words(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.help.endswith((".", "...")) and ". " not in setting.help
    assert setting.default and setting.option in OPTIONS


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, setting in SETTINGS.items()
        if isinstance(OPTIONS[setting.option].default, str | int) and name != "checkpoint"
    ],
)
def test_the_default_in_words_is_the_default(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.text.parse(setting.default) == OPTIONS[name].default


def test_a_keyword_goes_into_its_group_and_leaves_the_rest_alone() -> None:
    before = RunOptions(store="there", recovery=es.Recovery(pack_after="5s"))
    after = with_overrides(before, {"max_restarts": 9, "worker_memory": "2g", "engine": "tasks"})
    assert after.recovery == es.Recovery(max_restarts=9, pack_after="5s")
    assert after.resources == es.Resources(memory="2g")
    assert (after.store, before.recovery.max_restarts) == ("there", 3)


def test_a_keyword_wins_over_the_group_it_is_given_with() -> None:
    given = {"max_restarts": 9, "recovery": es.Recovery(max_restarts=1, pack_after="5s")}
    assert with_overrides(RunOptions(), given).recovery == es.Recovery(9, pack_after="5s")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_restart": 3}, "no option 'max_restart'. Did you mean max_restarts?"),
        ({"memory": "2g"}, "no option 'memory'"),
        ({"host_memory": "2g"}, "Did you mean worker_memory?"),
        ({"recovery": 3}, r"give an es.Recovery\(...\)"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_closest_name(
    wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(es.UserError, match=says):
        es.Pipeline("asked").run(**wrong)
    with pytest.raises(es.UserError, match=says):
        es.Pipeline("asked").start(**wrong)


def test_what_has_its_default_value_counts_as_not_given() -> None:
    options = RunOptions(engine="tasks", store="there", recovery=es.Recovery(max_restarts=5))
    assert given_in(options) == {"store": "there", "max_restarts": 5}


def test_every_option_reaches_the_engine() -> None:
    """Another value than the default gives another configuration."""
    other: dict[str, Any] = {
        "engine": "microbatch",
        "checkpoint": None,
        "store": "s",
        "fresh": True,
        "take_over": True,
        "latency": "20ms",
        "state": "disk",
        "timeout": "3s",
        "until": lambda status: True,
        "kill": ["a@5s"],
        "transport": "tcp",
        "listener": es.Listener(),
        "progress": False,
        "monitor": "50ms",
        "history": False,
        "ui": True,
        "master": "local[7]",
        "spark": object(),
        "workers": 2,
        "spares": 1,
        "autoscale": "1-3",
        "max_shards": 9,
        "worker_memory": "2g",
        "max_restarts": 8,
        "restart_window": "3s",
        "heartbeat_timeout": "3s",
        "pack_after": "3s",
        "slow_after": "3s",
        "checkpoint_timeout": "3s",
        "tolerable_checkpoint_failures": 4,
        "keep_checkpoints": 4,
        "keep_checkpoints_for": "3s",
        "start_timeout": "3s",
        "renamed": {"a": "b"},
        "drop_state": ["c"],
    }
    with_a_store: dict[str, Any] = {"standby": "3s", "start_from": "other@name"}
    assert other.keys() | with_a_store.keys() | {"store_key"} == OPTIONS.keys()
    for base, values in (({}, other), ({"store": "s"}, with_a_store)):
        plain = with_overrides(RunOptions(), base)
        for name, value in values.items():
            changed = with_overrides(plain, {name: value})
            assert _facts(RunConfig.of(changed)) != _facts(RunConfig.of(plain)), name


def _facts(config: RunConfig) -> dict[str, Any]:
    """Without what is another object in each configuration."""
    facts = {one.name: getattr(config, one.name) for one in fields(config)}
    facts["turn"] = config.turn.silence_s
    facts["listener"] = type(config.listener), config.progress
    return facts


def test_a_signed_store_has_its_key_from_the_options(tmp_path: Any) -> None:
    key = tmp_path / "a.key"
    key.write_text("a" * 64 + "\n")
    key.chmod(0o600)
    config = RunConfig.of(RunOptions(store="s", store_key=key))
    assert config.store_key is not None and config.key_file == str(key)


def test_the_core_has_the_same_default() -> None:
    assert es.Recovery().tolerable_checkpoint_failures == TOLERABLE_FAILURES


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("history", "off", False),
        ("history", True, True),
        ("workers", "4", 4),
        ("workers", 4, 4),
        ("timeout", 2.5, 2.5),
        ("kill", "a@5s, b@10", ["a@5s", "b@10"]),
        ("kill", ["a@5s"], ["a@5s"]),
        ("renamed", {"a": "b"}, {"a": "b"}),
        ("renamed", ["a=b", "c=c"], {"a": "b", "c": "c"}),
        ("renamed", "a=b,c=d", {"a": "b", "c": "d"}),
        ("standby", "yes", True),
        ("standby", "5s", "5s"),
        ("standby", False, False),
        ("ui", 4120, "4120"),
        ("ui", True, True),
        ("every", "auto", "auto"),
        ("until", "caught-up", "caught-up"),
    ],
)
def test_values_are_parsed_from_texts_and_from_toml(
    name: str, given: object, value: object
) -> None:
    assert SETTINGS[name].text.parse(given) == value


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("history", "perhaps", "say yes or no"),
        ("workers", "0", "from 1 up"),
        ("workers", True, "from 1 up"),
        ("workers", "many", "from 1 up"),
        ("max_shards", 40_000, "from 1 to 32768"),
        ("timeout", "-1s", "not a duration"),
        ("timeout", True, "give a time"),
        ("timeout", 0, "must be positive"),
        ("worker_memory", "much", "is not a size"),
        ("kill", [5], "list of texts"),
        ("renamed", "a", "OLD=NEW"),
        ("engine", "steam", "use one of tasks, microbatch"),
        ("checkpoint", "sometimes", "is not a checkpoint protocol"),
        ("store", 5, "give a text"),
        ("autoscale", "many", "MIN-MAX"),
    ],
)
def test_what_is_no_value_is_refused(name: str, given: object, says: str) -> None:
    with pytest.raises(es.UserError, match=says):
        SETTINGS[name].text.parse(given)


def test_settings_make_options() -> None:
    settings = {"checkpoint": "hmnr", "every": "2s", "workers": 2, "worker_memory": "1g"}
    options = RunOptions.from_settings(settings)
    assert options.checkpoint == es.CommunicationInduced(every="2s", rule="hmnr")
    assert options.resources == es.Resources(workers=2, memory="1g")
    assert RunOptions.from_settings({}) == RunOptions()
    assert RunOptions.from_settings({"every": "2s"}).checkpoint == es.Coordinated(every="2s")


@pytest.mark.parametrize(("latency", "latency_s"), [("5ms", 0.005), (0, 0.0), ("0", 0.0), (1, 1.0)])
def test_a_latency_may_be_zero(latency: Any, latency_s: float) -> None:
    assert RunConfig.of(RunOptions(latency=latency)).latency_s == latency_s
    assert SETTINGS["latency"].text.parse(latency) == (latency_s and latency)


@pytest.mark.parametrize("latency", ["-5ms", -1])
def test_a_latency_below_zero_is_refused(latency: Any) -> None:
    with pytest.raises(es.UserError, match=r"latency=.* 0 or more"):
        RunConfig.of(RunOptions(latency=latency))
