"""What `everstream run` was asked for, checked and ready to be handed to a driver process."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everstream.bench.rehearsal import Rehearsal
from everstream.core.scheme import Checkpointing
from everstream.errors import UserError
from everstream.pipeline.checkpointing import AUTO, Coordinated, Induced, Uncoordinated, seconds

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
    log: str | None = None
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

    def checkpointing(self) -> Checkpointing | None:
        own = {"every": self.every} if self.every is not None else {}
        if self.log is not None:
            own["log"] = self.log
        match self.checkpoint:
            case "coordinated" | "unaligned" | "at-least-once":
                if self.log is not None:
                    raise UserError(f"--checkpoint {self.checkpoint} keeps no log: drop --log.")
                mode = "aligned" if self.checkpoint == "coordinated" else self.checkpoint
                return Coordinated(self.every, self.every_records, mode)
            case "none":
                if self.every is not None or self.every_records is not None or self.log is not None:
                    raise UserError(
                        "--every, --every-records and --log need checkpoints: say which with "
                        "--checkpoint."
                    )
                return None
        if self.every_records is not None or self.every == AUTO:
            raise UserError(
                f"--checkpoint {self.checkpoint}: each shard has its own timer, so give a time "
                "with --every, such as 5s."
            )
        if self.checkpoint == "uncoordinated":
            return Uncoordinated(**own)  # type: ignore[arg-type]
        return Induced(**own, rule=self.checkpoint)  # type: ignore[arg-type]

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
