"""The command `everstream run` as data: checked, and ready to pass to a driver process."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from everstream.pipeline.options import RunOptions

if TYPE_CHECKING:
    from everstream.audit.rehearsal import Rehearsal
    from everstream.observability.monitoring.sampler import Monitor

DEFAULT_STORES = ".everstream"
"""Without --store, checkpoints go to a folder in here with the name of the pipeline."""


@dataclass(frozen=True)
class RunCommand:
    """A pipeline to run, the settings of its run, and options that only the command line has."""

    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """As `RunOptions.from_settings` takes them; all values fit into JSON."""
    command: str = field(default_factory=lambda: uuid.uuid4().hex)
    """An id that all drivers of one command share."""
    resumes: bool = False
    """A driver of this command had the store before."""
    load: tuple[str, ...] = ()
    calibrate: str | None = None
    catch_up: bool = True
    monitor_file: str | None = None
    log_json: bool = False
    arguments: tuple[str, ...] = ()
    """Arguments of an annotated function, as in limit=500."""
    rehearsal: "Rehearsal | None" = None
    """Run the pipeline as an audit does: with its sinks replaced."""

    @cached_property
    def options(self) -> RunOptions:
        return RunOptions.from_settings(self.settings)

    def check(self) -> None:
        """Raise a UserError for mistakes that do not depend on the pipeline."""
        assert self.options is not None
        self.monitor()
        if self.load or self.calibrate is not None:
            from everstream.cli.runs.under_load import loads_of

            loads_of(self.load, self.calibrate)

    def monitor(self) -> "Monitor | None":
        every = self.settings.get("monitor")
        if every is None and self.monitor_file is None:
            return None
        from everstream.observability.monitoring.sampler import DEFAULT_PERIOD, Monitor

        return Monitor(
            every or DEFAULT_PERIOD, self.monitor_file or "monitor.csv", append=self.resumes
        )

    def store_of(self, pipeline: str) -> str:
        return str(self.settings.get("store", f"{DEFAULT_STORES}/{pipeline}"))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunCommand":
        fields: dict[str, Any] = json.loads(text)
        how = fields.pop("rehearsal")
        if how is not None:
            from everstream.audit.rehearsal import Rehearsal

            records = tuple((name, count) for name, count in how["records"])
            how = Rehearsal(how["gate"], how["lasts_s"], records, how["audit_copy"])
        for name in ("arguments", "load"):
            fields[name] = tuple(fields[name])
        return cls(**fields, rehearsal=how)

    def with_settings(self, **settings: Any) -> "RunCommand":
        return replace(self, settings={**self.settings, **settings})

    def once_started(self) -> "RunCommand":
        """The command for a driver that takes over: the store already belongs to this command."""
        kept = {
            name: value
            for name, value in self.settings.items()
            if name not in ("fresh", "take_over", "drop_state")
        }
        return replace(self, settings=kept, resumes=True)

    @property
    def kills(self) -> list[str]:
        return list(self.settings.get("kill", ()))

    def without_kill(self, kill: str) -> "RunCommand":
        left = self.kills
        left.remove(kill)
        return self.with_settings(kill=left)
