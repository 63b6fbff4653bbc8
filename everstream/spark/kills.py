"""Kills a user asks for: `OPERATOR[:SHARD]@5s` or `OPERATOR[:SHARD]@10000` (records)."""

import re
from dataclasses import dataclass

from everstream.core.ids import ShardId
from everstream.core.plan import Plan
from everstream.errors import UserError
from everstream.pipeline.checkpointing import seconds

HELP = "write OPERATOR[:SHARD]@5s (a time after the start) or @10000 (records of that shard)"


@dataclass(frozen=True)
class Kill:
    """SIGKILL for the host of a shard, at a time after the start or after so many records."""

    operator: str
    shard: int = 0
    after_s: float | None = None
    after_records: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Kill":
        found = re.fullmatch(r"(?P<operator>[^:@]+)(?::(?P<shard>\d+))?@(?P<when>.+)", text)
        if found is None:
            raise UserError(f"--kill {text!r}: {HELP}.")
        when, shard = found["when"], int(found["shard"] or 0)
        if when.replace("_", "").isdigit():
            return cls(found["operator"], shard, after_records=int(when))
        try:
            return cls(found["operator"], shard, after_s=seconds(when))
        except UserError:
            raise UserError(f"--kill {text!r}: {HELP}.") from None

    def target(self, plan: Plan) -> ShardId:
        return plan.shard_for(self.operator, self.shard)
