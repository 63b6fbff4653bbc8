"""One configuration to measure, as both the bench and the processes it starts see it."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from everstream_lab.recovery.fast import FastOptions
from everstream_lab.workloads.transactions import WORKLOADS, Shape, Workload


@dataclass(frozen=True)
class Configuration:
    """A workload under a scheme, killed at an event.

    `crash_event` events are fed before the kill, which falls inside an epoch; the
    snapshot to recover from is taken after `snapshot_epoch`.
    """

    workload: str
    scheme: str
    folder: str
    events: int
    threads: int = 2
    epoch_events: int = 4096
    snapshot_epoch: int = 2
    crash_event: int = 0
    seed: int = 7
    cost_iterations: int = 0
    shape: Shape = field(default_factory=Shape)
    fast: FastOptions = field(default_factory=FastOptions)
    execution: str = "auto"

    def build(self) -> Workload:
        return WORKLOADS[self.workload](self.shape)

    @property
    def inputs_path(self) -> Path:
        return Path(self.folder) / "inputs.arrow"

    @property
    def log_folder(self) -> Path:
        return Path(self.folder) / "log"

    @property
    def sink_path(self) -> Path:
        return Path(self.folder) / "outcomes.bin"

    @property
    def journal_path(self) -> Path:
        return Path(self.folder) / "inputs.journal"

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> "Configuration":
        values: dict[str, Any] = json.loads(path.read_text())
        values["shape"] = Shape(**values["shape"])
        values["fast"] = FastOptions(**values["fast"])
        return Configuration(**values)


def default_shape(workload: str, **changes: Any) -> Shape:
    """A workload's own default shape with some knobs turned."""
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(WORKLOADS[workload](None).shape, **given)
