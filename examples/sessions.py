"""Finds visits in a click stream: an operator of your own, with keyed state and hooks.

A visit ends when the next click of the same visitor comes more than half an hour later. State
lives in `es.Keyed`: one value per key, kept across crashes. `on_end` closes the visits that are
still open when the stream ends.
"""

import everstream as es

GAP_S = 1800


def clicks(start: int, stop: int) -> list[dict[str, int]]:
    """Click number n, made up but always the same: 50 visitors who come back now and then."""
    return [
        {"visitor": n * 7 % 50, "at_s": n * 13 + (n // 600) * 4000, "page": n % 9}
        for n in range(start, stop)
    ]


class Visits(es.Operator):
    """Emits each visit once it is over: who, when it began, how many clicks, how many seconds."""

    open_visit: es.Keyed[dict[str, int] | None] = es.Keyed(init=lambda: None)

    def process(self, record: dict[str, int], ctx: es.Context) -> None:
        visit = self.open_visit[ctx.key]
        if visit is not None and record["at_s"] - visit["last_s"] > GAP_S:
            ctx.emit(finished(visit))
            visit = None
        if visit is None:
            began_s = record["at_s"]
            visit = {
                "visitor": record["visitor"],
                "began_s": began_s,
                "clicks": 0,
                "last_s": began_s,
            }
        self.open_visit[ctx.key] = {
            **visit,
            "clicks": visit["clicks"] + 1,
            "last_s": record["at_s"],
        }

    def on_end(self, ctx: es.Context) -> None:
        for _, visit in self.open_visit.items():
            if visit is not None:
                ctx.emit(finished(visit))


def finished(visit: dict[str, int]) -> dict[str, int]:
    return {
        "visitor": visit["visitor"],
        "began_s": visit["began_s"],
        "clicks": visit["clicks"],
        "lasted_s": visit["last_s"] - visit["began_s"],
    }


pipeline = es.Pipeline("sessions")
(
    pipeline.source(es.FromFunction(clicks, total=20_000, batch=500), name="clicks")
    .key_by(lambda click: click["visitor"])
    .process(Visits(), name="visits", shards=2)
    .sink(es.JsonLines("sessions/"), name="out")
)
if __name__ == "__main__":
    pipeline.run(checkpoint=es.Coordinated(every="2s"), store="checkpoints/sessions")
