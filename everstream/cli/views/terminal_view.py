"""The view of a run for a terminal: a row per chain of operators, the last checkpoint and failure.

Used by `everstream run`, which draws it in place, and by `everstream top`. The view fits the terminal and
leaves out the least important parts first; if nothing fits, the caller shows a message instead.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

View = Mapping[str, Any]
Row = Mapping[str, Any]
LEAST_WIDTH = 66
MEDIUM = 80
"""From this width on there is a bar beside the words."""
WIDE = 110
"""From this width on there are both shares in words, and the column "goes to"."""
AROUND = 4
"""Lines besides the graph: heading, column names, last checkpoint, last failure."""
LEAST_ROWS = 2
BAR = 12
FIGURES = {"shards": 6, "in": 8, "out": 8}
"""Column -> its width."""
GAP = 2
UNKNOWN = "-"
STYLES = {
    **dict.fromkeys(("running", "finished", "caught up"), "green"),
    "stopped": "blue",
    "failed": "red",
}


@dataclass(frozen=True)
class Room:
    width: int
    height: int

    def fits(self, view: View) -> bool:
        """Whether there is room for at least a part of the graph."""
        chains = len({operator["chain"] for operator in view["operators"]})
        rows = self.height - AROUND
        return self.width >= LEAST_WIDTH and chains > 0 and rows >= min(chains, LEAST_ROWS)


def drawn(
    view: View, room: Room, *, now: float | None = None, share: float | None = None
) -> RenderableType:
    """`now`: on the clock of the view. `share`: how much of the input has been read, if known."""
    now = time.time() if now is None else now
    chains = _chains(view)
    rows = max(1, room.height - AROUND)
    shown = chains
    if len(chains) > rows:
        busiest = sorted(chains, key=lambda chain: -_strain(chain[0]))[: rows - 1]
        shown = [chain for chain in chains if chain in busiest]
    table = Table(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim", expand=False
    )
    work = {id(chain): _work(view, chain[0], room.width) for chain in shown}
    longest = max((text.cell_len for text in work.values()), default=0)
    # Names are cut if necessary, figures never.
    names = room.width - longest - sum(FIGURES.values()) - GAP * (len(FIGURES) + 2)
    table.add_column("operators", no_wrap=True, overflow="ellipsis", max_width=max(8, names))
    for name, least in FIGURES.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=least)
    table.add_column("work", no_wrap=True, min_width=longest)
    if room.width >= WIDE:
        table.add_column("goes to", no_wrap=True, overflow="ellipsis")
    for chain in shown:
        cells: list[RenderableType] = [
            Text(" > ".join(str(operator["name"]) for operator in chain), style="bold"),
            str(chain[0]["shards"]),
            rate(chain[0]["in_per_s"]) if chain[0]["kind"] != "source" else "",
            rate(chain[-1]["out_per_s"]) if chain[-1]["kind"] != "sink" else "",
            work[id(chain)],
        ]
        if room.width >= WIDE:
            cells.append(Text(_goes_to(view, chain), style="dim"))
        table.add_row(*cells)
    parts: list[RenderableType] = [_heading(view, now, share), table]
    if len(shown) < len(chains):
        parts.append(Text(f"and {len(chains) - len(shown)} less busy", style="dim"))
    parts += [_last_checkpoint(view, now), _last_failure(view, now)]
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)


def rate(per_s: float | None) -> str:
    return UNKNOWN if per_s is None else f"{short(per_s)}/s"


def short(value: float) -> str:
    """82,310 -> 82.3 k."""
    for unit in ("", " k", " M", " G"):
        if abs(value) < 999.5 or unit == " G":
            places = 0 if abs(value) >= 99.5 or value == int(value) else 1
            return f"{value:.{places}f}{unit}"
        value /= 1000
    raise AssertionError("the last unit takes all")


def lasting(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size(size_bytes: float) -> str:
    return f"{short(size_bytes)}B" if size_bytes >= 999.5 else f"{size_bytes:.0f} B"


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "just now"
    return f"{int(seconds)} s ago" if seconds < 60 else f"{lasting(seconds)} ago"


def _chains(view: View) -> list[list[Row]]:
    chains: dict[str, list[Row]] = {}
    for operator in view["operators"]:
        chains.setdefault(operator["chain"], []).append(operator)
    return list(chains.values())


def _strain(operator: Row) -> float:
    return float((operator["busy"] or 0) + (operator["blocked"] or 0))


def _heading(view: View, now: float, share: float | None) -> Text:
    ended = view["ended"]
    phase = str(ended["outcome"] if ended else view["phase"])
    text = Text.assemble(
        (str(view["pipeline"] or ""), "bold"), "  ", (phase, STYLES.get(phase, "yellow"))
    )
    series = view["series"]
    facts = [f"{share:.0%}"] if share is not None else []
    if series["at"] and not ended:
        facts += [f"{rate(series['in_per_s'][-1])} in", f"{rate(series['out_per_s'][-1])} out"]
        if series["p99_ms"][-1] is not None:
            facts.append(f"p99 {lasting(series['p99_ms'][-1] / 1000)}")
    facts.append(f"epoch {view['epoch']}")
    if view["started_at"] is not None:
        until = ended.get("at", view["now"]) if ended else now
        facts.append(f"for {lasting(max(0, int(until - view['started_at'])))}")
    return text.append("  " + "  ".join(facts))


def _work(view: View, operator: Row, width: int) -> Text:
    """A bar and words: colour alone never carries the meaning."""
    shards = [shard for shard in view["shards"] if shard["chain"] == operator["chain"]]
    lost = sum(shard["phase"] == "lost" for shard in shards)
    if lost:
        return Text(f"{lost} lost", style="bold red")
    if operator["busy"] is None:
        return Text("not measured yet", style="dim")
    busy, blocked = float(operator["busy"]), float(operator["blocked"] or 0)
    text = Text()
    if width >= MEDIUM:
        full = min(BAR, round(busy * BAR))
        held = min(BAR - full, round(blocked * BAR))
        text.append("#" * full, "yellow" if busy < 0.8 else "bold yellow")
        text.append("/" * held, "magenta")
        text.append("." * (BAR - full - held) + " ", "dim")
    shares = [Text(f"busy {busy:.0%}")]
    if blocked >= 0.005:
        shares.append(Text(f"back-pressured {blocked:.0%}", style="magenta"))
    if width < WIDE:
        shares = shares[-1:] if blocked > busy else shares[:1]
    return text.append_text(Text(", ").join(shares))


def _goes_to(view: View, chain: list[Row]) -> str:
    inside = {operator["name"] for operator in chain}
    edges = [
        edge
        for edge in view["edges"]
        if edge["from"] in inside and (edge["feedback"] or edge["to"] not in inside)
    ]
    return ", ".join(
        f"{edge['to']}" + (" (feedback)" if edge["feedback"] else "") for edge in edges
    )


def _last_checkpoint(view: View, now: float) -> Text:
    for checkpoint in view["checkpoints"]:
        if checkpoint["failed"] is not None:
            return Text(
                f"checkpoint {checkpoint['epoch']} failed: {checkpoint['failed']}", style="red"
            )
        ended_at = checkpoint["started_at"] + checkpoint["duration_s"]
        slowest = f", slowest {checkpoint['slowest']}" if checkpoint["slowest"] else ""
        return Text(
            f"last checkpoint: epoch {checkpoint['epoch']}, {_ago(now - ended_at)}, took "
            f"{lasting(checkpoint['duration_s'])}, {size(checkpoint['bytes'])}{slowest}",
            style="dim",
        )
    every = view["interval_s"]
    return Text("no checkpoint yet" + (f"; one every {every:g} s" if every else ""), style="dim")


def _last_failure(view: View, now: float) -> Text:
    if not view["failures"]:
        return Text("no failures", style="dim")
    failure = max(view["failures"], key=lambda failure: float(failure["at"]))
    what = f"{failure['what']}, {_ago(now - failure['at'])}"
    if failure["caught_up_ms"] is None:
        steps = [
            name.removesuffix("_ms").replace("_", " ")
            for name in ("detected_ms", "restarted_ms", "restored_ms", "replayed_ms")
            if failure[name] is not None
        ]
        if view["ended"]:
            return Text(f"not recovered from: {what}", style="red")
        return Text(f"recovering: {what}: {', '.join(steps) or 'lost'} ...", style="bold red")
    caught_up = lasting(failure["caught_up_ms"] / 1000)
    replayed = f"{failure['records_replayed']:,} records replayed"
    return Text(f"last failure: {what}, caught up after {caught_up}, {replayed}", style="yellow")
