"""The options of a run, defined once.

`RunOptions` and its groups are the definition: each field has its type, its default, one sentence of
help, and how its value is written outside Python. The keywords of `pipeline.run` and `pipeline.start`,
the flags of the command line, the keys of `everstream.toml`, the environment variables and the table in
docs/reference/configuration.md are all made from it.

An option has one name, its keyword: `max_restarts=`, `--max-restarts`, `max_restarts = 5` and
`EVERSTREAM_MAX_RESTARTS` are the same option. Fields that are rarely needed are in a group
(`RunOptions.recovery.max_restarts`); the keyword leaves the group out.

A *setting* is what can be written as text. Almost every option is one setting. `checkpoint` is four,
because a file cannot contain `es.Coordinated(every="5s")`: `checkpoint`, `every`, `every_records`, `log`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args

from everstream.errors import UserError
from everstream.pipeline.autoscale import AutoScale
from everstream.pipeline.checkpointing import (
    PROTOCOL_WORDS,
    Checkpointing,
    Coordinated,
    EngineName,
    KeptLog,
    StateKind,
    in_words,
    seconds,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from everstream.engine.faults.kills import Kill
    from everstream.engine.reporting.listener import AnyListener
    from everstream.events import RunStatus
    from everstream.observability.monitoring.sampler import Monitor
    from everstream.pipeline.types import V

CAUGHT_UP: Final = "caught-up"
"""The value of `until` for a run that ends when it has caught up."""
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_DEFINITION: Final = "definition"


@dataclass(frozen=True)
class OptionSyntax:
    """How a value is written outside Python.

    `parse` takes a text, or a value as TOML has it, and returns a value that JSON can hold. It raises a
    UserError that explains what is wrong; the caller adds where the value was written.
    """

    parse: Callable[[Any], Any]
    metavar: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    switch: bool = False
    """Yes or no."""
    optional: bool = False
    """A flag that may have a value; without one it means yes."""
    many: bool = False
    """A flag that may be repeated; in a file, a list."""
    path: bool = False
    """A file or folder: in a file, relative to the folder of that file."""


def _switch(given: object) -> bool:
    if isinstance(given, bool):
        return given
    word = str(given).strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise UserError("say yes or no.")
    return word in _TRUE


def _text(given: object) -> str:
    if not isinstance(given, str) or not given:
        raise UserError("give a text.")
    return given


def _duration(given: object) -> str | float:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise UserError("give a time such as 500ms, 5s, 2m, 1h or 1d.")
    if seconds(given) <= 0:
        raise UserError("the time must be positive.")
    return given


def _budget(given: object) -> str | float:
    return 0 if given in ("0", "0s", "0ms", 0) and given is not False else _duration(given)


def _size(given: object) -> str | int:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise UserError("give a size such as 512m or 2g.")
    from everstream.pipeline.times import size_bytes

    size_bytes("the size", given)
    return given


def _list(given: object) -> list[str]:
    """A list of texts; in one text, separated by commas."""
    items = given.split(",") if isinstance(given, str) else given
    if not isinstance(items, list | tuple) or not all(isinstance(one, str) for one in items):
        raise UserError("give a list of texts.")
    return [one.strip() for one in items if one.strip()]


def _pairs(given: object) -> dict[str, str]:
    """A table, or a list of OLD=NEW."""
    if isinstance(given, dict):
        pairs = [(str(old), str(new)) for old, new in given.items()]
    else:
        parts = [text.partition("=") for text in _list(given)]
        pairs = [(old, new) for old, _, new in parts]
    if not all(old and new for old, new in pairs):
        raise UserError("write OLD=NEW, as in count=total.")
    return dict(pairs)


def _either(given: object, other: Callable[[object], Any]) -> Any:
    """A switch that may also have a value."""
    if isinstance(given, bool) or str(given).strip().lower() in (*_TRUE, *_FALSE):
        return _switch(given)
    return other(given)


def _choice(*choices: str, unit: str = "") -> OptionSyntax:
    def parse(given: object) -> str:
        if given not in choices:
            raise UserError(f"use one of {', '.join(choices)}.")
        return str(given)

    return OptionSyntax(parse, unit=unit, choices=choices)


def _whole(least: int, unit: str, most: int | None = None) -> OptionSyntax:
    def parse(given: object) -> int:
        try:
            number = int(given) if isinstance(given, str) else given
        except ValueError:
            number = None
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise UserError(f"give a whole number from {least} up.")
        if most is not None and number > most:
            raise UserError(f"give a whole number from {least} to {most}.")
        return number

    return OptionSyntax(parse, "N", unit)


def _interval(given: object) -> str | float:
    return "auto" if given == "auto" else _duration(given)


def _autoscale(given: object) -> str:
    AutoScale.parse(_text(given))
    return str(given)


def _protocol(given: object) -> str:
    in_words(str(given))
    return str(given)


SWITCH = OptionSyntax(_switch, switch=True)
DURATION = OptionSyntax(_duration, "TIME", "time")


@dataclass(frozen=True)
class Setting:
    """What can be written as text: an option, or a part of one."""

    name: str
    """Its key in a file; `--NAME` on the command line, `EVERSTREAM_NAME` in the environment."""
    help: str
    text: OptionSyntax
    default: str
    """As text, for people."""
    option: str = ""
    """The keyword of the option that it is, or is a part of."""
    group: str = ""
    for_one_run: bool = False
    """Only for a flag or a keyword. In a file it would apply to every later run as well."""
    variable: str = ""
    """The environment variable."""
    flag: str = ""
    """The flag of the command line; empty if it has none."""
    panel: str = ""
    """Where `--help` shows it; empty for the basics."""
    brief: str = ""
    """`help` in one line, for `--help`."""


@dataclass(frozen=True)
class Definition:
    """Everything about an option besides its type and its default."""

    help: str
    text: OptionSyntax | None = None
    """None: only Python can give it."""
    _: KW_ONLY
    shown: str = ""
    """The default in words."""
    keyword: str = ""
    """Its name outside its group, if it differs from the one inside."""
    variable: str = ""
    """Its environment variable, if it is not derived from the name."""
    flag: bool = True
    for_one_run: bool = False
    parts: tuple[Setting, ...] = ()
    """Its other settings."""


def option(default: V, help: str, text: OptionSyntax | None = None, **more: Any) -> V:
    """A field of `RunOptions` or of one of its groups."""
    return field(default=default, metadata={_DEFINITION: Definition(help, text, **more)})


@dataclass(frozen=True)
class Resources:
    """What a run may use: where it runs, and how much of it.

    >>> es.Resources(workers=4, memory="2g").spares
    0
    """

    master: str = option(
        "local[*]",
        "Spark master to run on: local[4], spark://HOST:7077, ...",
        OptionSyntax(_text, "URL"),
    )
    spark: SparkSession | None = option(None, "A Spark session that you already have.")
    workers: int | None = option(
        None,
        "Workers (Spark tasks) that share the shards.",
        _whole(1, "workers"),
        shown="all slots",
    )
    spares: int = option(
        0,
        "Further Spark tasks that wait with everything loaded but the state; one of them replaces a "
        "worker that dies.",
        _whole(0, "workers"),
    )
    autoscale: AutoScale | str | None = option(
        None,
        "Change the numbers of shards during the run so that operators are busy 70 % of the time: 1-8, "
        "or 1-8@0.6 for another share.",
        OptionSyntax(_autoscale, "MIN-MAX"),
        shown="off",
    )
    max_shards: int | None = option(
        None,
        "Upper bound on the shards of an operator after key_by (the number of key groups), fixed per "
        "store.",
        _whole(1, "shards", 32_768),
        shown="128",
    )
    memory: str | int | None = option(
        None,
        "Memory that the process of one worker may use; near the limit it stops reading, at the limit "
        "the run fails and names the largest state.",
        OptionSyntax(_size, "SIZE", "size"),
        keyword="worker_memory",
        shown="unlimited",
    )


@dataclass(frozen=True)
class Recovery:
    """How a run notices failures, and how many it survives.

    >>> es.Recovery(max_restarts=10).restart_window
    '10m'
    """

    max_restarts: int = option(
        3,
        "Failures within restart_window from which the run recovers; one more and it fails.",
        _whole(0, "failures"),
    )
    restart_window: str | float = option(
        "10m", "Time over which failures are counted for max_restarts.", DURATION
    )
    heartbeat_timeout: str | float = option(
        "10s",
        "Restart a worker that has not sent a heartbeat for this long; use more where functions hold "
        "Python's interpreter lock for seconds.",
        DURATION,
    )
    pack_after: str | float = option(
        "30s",
        "Move the shards of a worker to the others if it has not come back after this long.",
        DURATION,
    )
    slow_after: str | float = option(
        "10s",
        "Warn when a checkpoint, a restore or an access to the store takes longer than this.",
        DURATION,
    )
    checkpoint_timeout: str | float = option(
        "10m",
        "Abort a checkpoint that is not complete after this long, and start the next one.",
        DURATION,
    )
    tolerable_checkpoint_failures: int = option(
        100,
        "Checkpoints in a row that may fail, for example because the store is full; one more and the "
        "run fails.",
        _whole(0, "checkpoints"),
    )
    keep_checkpoints: int = option(
        3,
        "How many of the newest checkpoints stay in the store, at least 3.",
        _whole(3, "checkpoints"),
    )
    keep_checkpoints_for: str | float | None = option(
        None,
        "Keep older checkpoints, too, until they have this age.",
        DURATION,
        shown="none",
    )
    start_timeout: str | float = option(
        "2m",
        "How long to retry a database or broker that cannot be reached while the run starts, or to wait "
        "for slots of Spark that other runs of the process use.",
        DURATION,
    )


@dataclass(frozen=True)
class Upgrade:
    """What happens to the state in a store when the pipeline has changed.

    >>> es.Upgrade(renamed={"count": "total"}).drop_state
    ()
    """

    renamed: Mapping[str, str] | None = option(
        None,
        "Operators that have another name than in the checkpoint; NAME=NAME keeps the state of an "
        "operator that has changed.",
        OptionSyntax(_pairs, "OLD=NEW", many=True),
        shown="none",
    )
    drop_state: Collection[str] = option(
        (),
        "Operators that start with empty state while the others resume from the checkpoint.",
        OptionSyntax(_list, "OPERATOR", many=True),
        shown="none",
        for_one_run=True,
    )
    start_from: str | None = option(
        None,
        "Savepoint to start from if the store of this run has no checkpoint yet.",
        OptionSyntax(_text, "STORE@NAME"),
        shown="none",
    )


@dataclass(frozen=True)
class RunOptions:
    """The options of one run, for `pipeline.run(options)` and `pipeline.start(options)`.

    What is often needed is here, the rest in three groups. Every option can also be given as a keyword of
    `run` and `start`, without its group, and then replaces the one in here. An option that has its default
    value counts as not given: the file or the environment may set it
    (docs/reference/configuration.md has all options).

    >>> options = es.RunOptions(store="checkpoints/", recovery=es.Recovery(max_restarts=10))
    >>> pipeline = es.Pipeline("ten").source(es.Range(10)).collect()
    >>> pipeline.run(options, workers=1).records_out
    10
    """

    engine: EngineName = option(
        "tasks",
        "tasks: long-running Spark tasks that send each other records; microbatch: one Spark job per "
        "epoch, and Spark carries the records; local: processes of this machine, without Spark.",
        replace(_choice(*get_args(EngineName)), metavar="ENGINE"),
    )
    checkpoint: Checkpointing | None = option(
        Coordinated(),
        "Checkpoint protocol.",
        OptionSyntax(_protocol, "PROTOCOL"),
        shown="aligned",
        parts=(
            Setting(
                "every",
                "Time between checkpoints; auto: the best interval for what the run measures.",
                OptionSyntax(_interval, "TIME", "time"),
                "30s",
            ),
            Setting(
                "every_records",
                "Take a checkpoint after this many records read.",
                _whole(1, "records"),
                "none",
            ),
            Setting(
                "log",
                "Where protocols that log messages keep the log: durable, in the store; memory, lost "
                "with its process.",
                _choice(*get_args(KeptLog)),
                "durable",
            ),
        ),
    )
    store: str | os.PathLike[str] | None = option(
        None,
        "Folder or fsspec URL for the checkpoints; a later run with the same store resumes from them.",
        OptionSyntax(_text, "DIR", path=True),
        shown="a temporary folder; `everstream run`: .everstream/PIPELINE",
    )
    store_key: str | os.PathLike[str] | None = option(
        None,
        "File with the key that signs the store; objects that were not signed with it are refused.",
        OptionSyntax(_text, "FILE", path=True),
        variable="EVERSTREAM_STORE_KEY_FILE",
        shown="none",
    )
    fresh: bool = option(
        False, "Delete earlier checkpoints and output, and start over.", SWITCH, for_one_run=True
    )
    take_over: bool = option(
        False,
        "Run even if another run uses this store; that run then ends.",
        SWITCH,
        for_one_run=True,
    )
    standby: bool | str | float = option(
        False,
        "Wait, with Spark started, until the run on this store dies or its driver is silent for this "
        "long (1.5s if no time is given), and take over.",
        OptionSyntax(lambda given: _either(given, _duration), "TIME", "time", optional=True),
    )
    latency: str | float = option(
        "5ms",
        "How long a record may wait at a source that has nothing more to give, so that it travels with "
        "the next ones; 0: not at all, which takes more processor time at low rates.",
        OptionSyntax(_budget, "TIME", "time"),
    )
    state: StateKind | None = option(
        None,
        "Where operators keep their state unless they choose it themselves; on disk it may be larger "
        "than memory.",
        _choice(*get_args(StateKind)),
        shown="memory",
    )
    timeout: str | float | None = option(
        None,
        "Stop after this long, with a final checkpoint if one completes in time.",
        DURATION,
        shown="none",
    )
    until: Callable[[RunStatus], bool] | Literal["caught-up"] | None = option(
        None,
        "caught-up: process everything that is there now, take a checkpoint and end; in Python also a "
        "function of the run's RunStatus that returns True to stop the run.",
        _choice(CAUGHT_UP),
        shown="none",
    )
    kill: Sequence[str | Kill] = option(
        (),
        "Kill the process of a shard with SIGKILL after a time (@5s) or a number of its records (@10000).",
        OptionSyntax(_list, "OPERATOR[:SHARD]@WHEN", many=True),
        shown="none",
    )
    transport: str = option(
        "auto",
        "auto: unix sockets on one machine, encrypted TCP between machines; tcp: always TCP.",
        _choice("auto", "tcp"),
    )
    listener: AnyListener | None = option(
        None, "A function or an es.Listener that is called with every event of the run."
    )
    progress: bool | None = option(
        None,
        "Show the progress of the run on standard error.",
        SWITCH,
        shown="yes, unless there is a listener",
        flag=False,
    )
    monitor: Monitor | str | None = option(
        None,
        "Sample throughput, latency, CPU and memory this often, from 50ms up.",
        OptionSyntax(_duration, "TIME", "time"),
        shown="off",
    )
    history: bool = option(
        True, "Keep the events of the run in the store, at most 16 MB, for everstream ui.", SWITCH
    )
    ui: bool | str = option(
        False,
        "Serve a page with the live run and its metrics for Prometheus, on loopback or on HOST:PORT; the "
        "link that is printed contains the token.",
        OptionSyntax(lambda given: _either(given, str), "HOST:PORT", optional=True),
    )
    resources: Resources = Resources()
    recovery: Recovery = Recovery()
    upgrade: Upgrade = Upgrade()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> RunOptions:
        """The options for these parsed settings; all others have their defaults."""
        values = {name: value for name, value in settings.items() if name not in _CHECKPOINTING}
        if not _CHECKPOINTING.isdisjoint(settings):
            values["checkpoint"] = in_words(
                settings.get("checkpoint", "aligned"),
                settings.get("every"),
                settings.get("every_records"),
                settings.get("log"),
            )
        return with_overrides(cls(), values)


class RunOptionsDict(TypedDict, total=False):
    """The keywords of `run` and `start`: every option without its group, or a whole group."""

    engine: EngineName
    checkpoint: Checkpointing | None
    store: str | os.PathLike[str] | None
    store_key: str | os.PathLike[str] | None
    fresh: bool
    take_over: bool
    standby: bool | str | float
    latency: str | float
    state: StateKind | None
    timeout: str | float | None
    until: Callable[[RunStatus], bool] | Literal["caught-up"] | None
    kill: Sequence[str | Kill]
    transport: str
    listener: AnyListener | None
    progress: bool | None
    monitor: Monitor | str | None
    history: bool
    ui: bool | str
    resources: Resources
    master: str
    spark: SparkSession | None
    workers: int | None
    spares: int
    autoscale: AutoScale | str | None
    max_shards: int | None
    worker_memory: str | int | None
    recovery: Recovery
    max_restarts: int
    restart_window: str | float
    heartbeat_timeout: str | float
    pack_after: str | float
    slow_after: str | float
    checkpoint_timeout: str | float
    tolerable_checkpoint_failures: int
    keep_checkpoints: int
    keep_checkpoints_for: str | float | None
    start_timeout: str | float
    upgrade: Upgrade
    renamed: Mapping[str, str] | None
    drop_state: Collection[str]
    start_from: str | None


GROUPS: Final[Mapping[str, type[Resources] | type[Recovery] | type[Upgrade]]] = {
    "resources": Resources,
    "recovery": Recovery,
    "upgrade": Upgrade,
}


@dataclass(frozen=True)
class OptionPath:
    """Where the value of a keyword is in `RunOptions`."""

    group: str
    """Empty for options that are in no group."""
    field: str
    default: Any

    def value_in(self, options: RunOptions) -> Any:
        return getattr(getattr(options, self.group) if self.group else options, self.field)


def _fields() -> Iterable[tuple[str, Field[Any]]]:
    for one in fields(RunOptions):
        if one.name in GROUPS:
            for inner in fields(GROUPS[one.name]):
                yield one.name, inner
        else:
            yield "", one


def _in_words(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    assert default is not None, "describe the meaning of its default: shown="
    return str(default)


PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "store": "Folder or URL for checkpoints.",
        "every": "Time between checkpoints, or auto.",
        "checkpoint": "Checkpoint protocol.",
        "engine": "tasks, microbatch (both on Spark) or local.",
        "workers": "Processes that share the shards.",
        "master": "Spark master: local[4], spark://HOST:7077.",
        "until": "Process what is there now, take a checkpoint and end.",
        "timeout": "Stop after this long, if possible with a final checkpoint.",
        "latency": "How long records wait for others at a source.",
        "fresh": "Delete earlier checkpoints and output; asks first.",
        "ui": "Serve a page with the live run, on loopback or HOST:PORT.",
    },
    "Checkpoints": {
        "every_records": "Take a checkpoint after this many records.",
        "checkpoint_timeout": "Abort a checkpoint after this long.",
        "tolerable_checkpoint_failures": "Failures in a row to tolerate.",
        "keep_checkpoints": "How many checkpoints stay in the store.",
        "keep_checkpoints_for": "Keep checkpoints until they have this age.",
        "store_key": "File with the key that signs the store.",
    },
    "Resources": {
        "state": "Where operators keep their state.",
        "worker_memory": "Memory limit of a worker process.",
        "spares": "Idle tasks, each ready to replace a worker.",
        "autoscale": "Add and remove shards, as in 1-8 or 1-8@0.6.",
        "max_shards": "Most shards of an operator; fixed per store.",
    },
    "Recovery": {
        "max_restarts": "Failures to survive per restart window.",
        "restart_window": "Period over which failures are counted.",
        "heartbeat_timeout": "Restart a worker that is silent for this long.",
        "pack_after": "Move a lost worker's shards after this long.",
        "start_timeout": "Keep trying to connect at start.",
        "standby": "Take over when the driver is silent for 1.5s, or TIME.",
        "take_over": "Run even if another run uses this store; that one ends.",
    },
    "Upgrade": {
        "renamed": "Operators with a new name; repeatable.",
        "drop_state": "Operators that start with empty state; repeatable.",
        "start_from": "Savepoint to start from if the store has no checkpoint.",
    },
    "Monitoring": {
        "monitor": "Sample rates, latency, CPU and memory this often.",
        "slow_after": "Warn if a checkpoint takes longer.",
        "history": "Keep events in the store for the page.",
    },
    "Load and faults": {"kill": "Send SIGKILL to a shard: @5s, @10000; repeatable."},
    "Advanced": {"transport": "tcp: never use unix sockets.", "log": "Where message logs are."},
}
"""How `--help` shows the settings: panel -> setting -> its help in one line, in the order shown."""


def _defined() -> tuple[dict[str, OptionPath], dict[str, Setting]]:
    places: dict[str, OptionPath] = {}
    settings: dict[str, Setting] = {}
    in_help = {name: (panel, line) for panel, one in PANELS.items() for name, line in one.items()}
    for group, one in _fields():
        known: Definition = one.metadata[_DEFINITION]
        keyword = known.keyword or one.name
        places[keyword] = OptionPath(group, one.name, one.default)
        if known.text is None:
            continue
        default = known.shown or _in_words(one.default)
        for part in (Setting(keyword, known.help, known.text, default), *known.parts):
            variable = known.variable or f"EVERSTREAM_{part.name.upper()}"
            panel, brief = in_help[part.name] if known.flag else ("", "")
            settings[part.name] = replace(
                part,
                option=keyword,
                group=group,
                for_one_run=known.for_one_run,
                flag=f"--{part.name.replace('_', '-')}" if known.flag else "",
                variable="" if known.for_one_run else variable,
                panel=panel,
                brief=brief,
            )
    return places, settings


_DEFINED = _defined()
OPTIONS: Final[Mapping[str, OptionPath]] = _DEFINED[0]
"""Keyword -> where it is."""
SETTINGS: Final[Mapping[str, Setting]] = _DEFINED[1]
"""Key -> what can be written under it."""
_CHECKPOINTING = frozenset(name for name, one in SETTINGS.items() if one.option == "checkpoint")
assert PROTOCOL_WORDS[SETTINGS["checkpoint"].default] == RunOptions().checkpoint


def closest(name: str, known: Iterable[str]) -> str:
    """A question that names the most similar name; empty if none is similar."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f" Did you mean {near[0]}?" if near else ""


def with_overrides(options: RunOptions, overrides: Mapping[str, Any]) -> RunOptions:
    """These options with the ones that are given by their keywords; a UserError for an unknown one."""
    changed: dict[str, dict[str, Any]] = {"": {}}
    for name, value in overrides.items():
        if name in GROUPS:
            if not isinstance(value, GROUPS[name]):
                raise UserError(f"{name}={value!r}: give an es.{GROUPS[name].__name__}(...).")
            whole: dict[str, Any] = {name: value}
            options = replace(options, **whole)
        elif (place := OPTIONS.get(name)) is not None:
            changed.setdefault(place.group, {})[place.field] = value
        else:
            raise UserError(
                f"a run has no option '{name}'.{closest(name, (*OPTIONS, *GROUPS))} "
                "docs/reference/configuration.md has all options."
            )
    groups: dict[str, Any] = {
        group: replace(getattr(options, group), **inner)
        for group, inner in changed.items()
        if group
    }
    return replace(options, **groups, **changed[""])


def given_in(options: RunOptions) -> dict[str, Any]:
    """Keyword -> value, of the options that do not have their default."""
    values = {name: (place.value_in(options), place.default) for name, place in OPTIONS.items()}
    return {
        name: value
        for name, (value, default) in values.items()
        if value is not default and value != default
    }
