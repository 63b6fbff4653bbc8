"""Kills a user requests: of a shard's worker or the driver, after a time, some records, or at a point.

`OPERATOR[:SHARD]@5s`, `@10000` (records of that shard), `@after-prepare` (the first time it reaches
that point) or `@in-commit#3` (the third time). `driver@...` kills the driver.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

from everstream.core.fault_points import Point
from everstream.core.ids import ShardId
from everstream.core.plan import Plan
from everstream.errors import UserError
from everstream.pipeline.checkpointing import seconds

DRIVER = "driver"
HELP = (
    "write OPERATOR[:SHARD]@5s (a time after the start), @10000 (records of that shard) or a "
    f"point: {', '.join('@' + point.value for point in Point)}; driver@... kills the driver"
)


@dataclass(frozen=True)
class Kill:
    """SIGKILL for the worker of a shard or for the driver: the elements of `run(kill=[...])`.

    >>> es.Kill("count", shard=1, after_records=10_000) == es.Kill.parse("count:1@10000")
    True
    >>> es.Kill.parse("count@5s").after_s
    5.0
    >>> es.Kill.parse("count@in-commit#3").occurrence
    3
    """

    operator: str
    shard: int = 0
    after_s: float | None = None
    after_records: int | None = None
    at: Point | None = None
    occurrence: int = 1

    @classmethod
    def parse(cls, text: str) -> "Kill":
        """A kill in command-line form: `OPERATOR[:SHARD]@WHEN`."""
        found = re.fullmatch(r"(?P<operator>[^:@]+)(?::(?P<shard>\d+))?@(?P<when>.+)", text)
        if found is None:
            raise UserError(f"--kill {text!r}: {HELP}.")
        operator, when, shard = found["operator"], found["when"], int(found["shard"] or 0)
        point, _, occurrence = when.partition("#")
        if point in {known.value for known in Point} and (occurrence or "1").isdigit():
            return cls(operator, shard, at=Point(point), occurrence=int(occurrence or 1))
        if when.replace("_", "").isdigit() and operator != DRIVER:
            return cls(operator, shard, after_records=int(when))
        try:
            return cls(operator, shard, after_s=seconds(when))
        except UserError:
            raise UserError(f"--kill {text!r}: {HELP}.") from None

    def __str__(self) -> str:
        """The command-line form."""
        match self:
            case Kill(at=Point() as point, occurrence=occurrence):
                when = point.value + (f"#{occurrence}" if occurrence != 1 else "")
            case Kill(after_records=int() as records):
                when = str(records)
            case _:
                when = f"{Decimal(repr(self.after_s or 0.0)):f}s"  # never 1e-05
        return f"{self.operator}:{self.shard}@{when}"

    def of_driver(self, plan: Plan) -> bool:
        """Whether it kills the driver, and not an operator with this name."""
        return self.operator == DRIVER and DRIVER not in plan.chain_of

    def check(self, plan: Plan) -> None:
        """Raise a UserError if there is nothing to kill."""
        if not self.of_driver(plan):
            self.target(plan)

    def target(self, plan: Plan) -> ShardId:
        """The shard whose worker is killed."""
        return plan.shard_for(self.operator, self.shard)
