"""What `everstream run` was asked for, checked and ready to be handed to a driver process."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everstream.bench.rehearsal import Rehearsal
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Coordinated, seconds

DEFAULT_STORES = ".everstream"
"""Without --store, checkpoints go to a folder of the pipeline's name in here."""


@dataclass(frozen=True)
class RunOptions:
    """The options of one command, in the words the user gave them."""

    target: str
    master: str = "local[*]"
    workers: int | None = None
    checkpoint: str = "coordinated"
    every: str | None = None
    every_records: int | None = None
    store: str | None = None
    fresh: bool = False
    max_restarts: int = 3
    timeout: str | None = None
    kills: tuple[str, ...] = field(default=())
    transport: str = "auto"
    rehearsal: Rehearsal | None = None
    """Run the pipeline as an audit does: without its own sinks."""

    def check(self) -> None:
        """Raise a UserError for what is wrong whatever the pipeline is."""
        self.checkpointing()
        if self.timeout is not None and seconds(self.timeout) <= 0:
            raise UserError(f"--timeout {self.timeout}: the time must be positive.")

    def checkpointing(self) -> Coordinated | None:
        if self.checkpoint == "coordinated":
            return Coordinated(self.every, self.every_records)
        if self.every is not None or self.every_records is not None:
            raise UserError("--every and --every-records need --checkpoint coordinated.")
        return None

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
            how = Rehearsal(how["gate"], how["lasts_s"], records)
        return cls(**{**fields, "kills": tuple(fields["kills"]), "rehearsal": how})

    def without_fresh(self) -> "RunOptions":
        """What a driver that takes over is asked for: earlier checkpoints are its own by then."""
        return replace(self, fresh=False)

    def without_kill(self, kill: str) -> "RunOptions":
        left = list(self.kills)
        left.remove(kill)
        return replace(self, kills=tuple(left))
