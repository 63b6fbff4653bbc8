"""What `everstream run` was asked for, checked and ready to be handed to a driver process."""

import json
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everstream.audit.rehearsal import Rehearsal
from everstream.cli.under_load import loads_of
from everstream.core.registry import named
from everstream.errors import UserError
from everstream.monitoring.monitor import DEFAULT_PERIOD, Monitor
from everstream.pipeline.checkpointing import AUTO, Checkpointing, Coordinated, Engine, seconds
from everstream.pipeline.operator import StateKind
from everstream.pipeline.sizes import size_bytes

DEFAULT_STORES = ".everstream"
"""Without --store, checkpoints go to a folder of the pipeline's name in here."""
ALSO_CALLED = {"coordinated": "aligned"}
"""Words that --checkpoint takes for a protocol that has another name."""


@dataclass(frozen=True)
class RunOptions:
    """The options of one command, in the words the user gave them."""

    target: str
    master: str = "local[*]"
    workers: int | None = None
    spares: int = 0
    autoscale: str | None = None
    standby: str | None = None
    """How long a silence a standby waits for; None: it does not stand by."""
    command: str = field(default_factory=lambda: uuid.uuid4().hex)
    """All drivers of one command have the same."""
    goes_on: bool = False
    """A driver of this command had the store before."""
    checkpoint: str = "aligned"
    every: str | None = None
    every_records: int | None = None
    log: str | None = None
    store: str | None = None
    fresh: bool = False
    renamed: tuple[str, ...] = ()
    drop_state: tuple[str, ...] = ()
    take_over: bool = False
    start_from: str | None = None
    max_restarts: int = 3
    timeout: str | None = None
    checkpoint_timeout: str = "10m"
    heartbeat_timeout: str = "10s"
    pack_after: str = "30s"
    kills: tuple[str, ...] = field(default=())
    transport: str = "auto"
    load: tuple[str, ...] = ()
    calibrate: str | None = None
    catch_up: bool = True
    store_key: str | None = None
    monitor: str | None = None
    monitor_file: str | None = None
    monitor_append: bool = False
    """The file has rows of an earlier driver of this command."""
    log_json: bool = False
    history: bool = True
    """Keep in the store what happens; the monitor does so, who knows of drivers that die."""
    engine: Engine = "tasks"
    state: StateKind | None = None
    host_memory: str | None = None
    arguments: tuple[str, ...] = ()
    """What an annotated function is called with, as in limit=500."""
    rehearsal: Rehearsal | None = None
    """Run the pipeline as an audit does: without its own sinks."""

    def check(self) -> None:
        """Raise a UserError for what is wrong whatever the pipeline is."""
        self.checkpointing()
        self.renamings()
        self.watching()
        loads_of(self.load, self.calibrate)
        if self.host_memory is not None:
            size_bytes("--host-memory", self.host_memory)
        times = {
            "--timeout": self.timeout,
            "--checkpoint-timeout": self.checkpoint_timeout,
            "--heartbeat-timeout": self.heartbeat_timeout,
            "--pack-after": self.pack_after,
            "--standby-after": self.standby,
        }
        for option, time in times.items():
            if time is not None and seconds(time) <= 0:
                raise UserError(f"{option} {time}: the time must be positive.")

    def checkpointing(self) -> Checkpointing | None:
        protocol = named(self.checkpoint)
        said: dict[str, Any] = {} if self.every is None else {"every": self.every}
        if protocol.choice is None:
            if said or self.every_records is not None or self.log is not None:
                raise UserError(
                    "--every, --every-records and --log need checkpoints: say which with "
                    "--checkpoint."
                )
            return None
        if isinstance(protocol.choice, Coordinated):
            if self.log is not None:
                raise UserError(f"--checkpoint {protocol.name} keeps no log: drop --log.")
            return replace(protocol.choice, every_records=self.every_records, **said)
        if self.every_records is not None or self.every == AUTO:
            raise UserError(
                f"--checkpoint {protocol.name}: each shard has its own timer, so give a time "
                "with --every, such as 5s."
            )
        if self.log is not None:
            said["log"] = self.log
        return replace(protocol.choice, **said)

    def watching(self) -> Monitor | None:
        """The monitor that --monitor and --monitor-file ask for."""
        if self.monitor is None and self.monitor_file is None:
            return None
        every = self.monitor if self.monitor is not None else DEFAULT_PERIOD
        return Monitor(every, self.monitor_file, append=self.monitor_append)

    def store_of(self, pipeline: str) -> str:
        return self.store if self.store is not None else f"{DEFAULT_STORES}/{pipeline}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunOptions":
        fields: dict[str, Any] = json.loads(text)
        how = fields.pop("rehearsal")
        if how is not None:
            records = tuple((name, count) for name, count in how["records"])
            how = Rehearsal(how["gate"], how["lasts_s"], records, how["aside"])
        for name in ("kills", "renamed", "drop_state", "arguments", "load"):
            fields[name] = tuple(fields[name])
        return cls(**fields, rehearsal=how)

    def renamings(self) -> dict[str, str]:
        """Operators as they were -> as they are called now."""
        pairs = [text.partition("=") for text in self.renamed]
        for text, (old, _, new) in zip(self.renamed, pairs, strict=True):
            if not old or not new:
                raise UserError(f"--renamed {text}: write OLD=NEW, as in --renamed count=total.")
        return {old: new for old, _, new in pairs}

    def once_started(self) -> "RunOptions":
        """What a driver that takes over is asked for: the store and all in it is its own by then."""
        return replace(
            self,
            fresh=False,
            take_over=False,
            drop_state=(),
            monitor_append=True,
            goes_on=True,
        )

    def without_kill(self, kill: str) -> "RunOptions":
        left = list(self.kills)
        left.remove(kill)
        return replace(self, kills=tuple(left))
