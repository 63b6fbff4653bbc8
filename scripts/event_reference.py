"""Writes docs/events.md, the reference of all events, from the dataclasses in everstream/events.py.

`python scripts/event_reference.py` writes it; a test compares it with the code.
"""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import get_args

from everstream import events
from everstream.observability.history.stored import KIND_OF, LIVE_ONLY

PAGE = Path(__file__).parents[1] / "docs" / "events.md"
INTRO = """\
# Events

A run reports what happens as a stream of events. Your listener, the terminal, the log, the history in the
store, the web page, metrics and traces all read the same events. Use them to alert, to test or to steer a run.

```python
import everstream as es


def alert(event: es.RunEvent) -> None:
    match event:
        case es.events.WorkerLost(worker=worker, how=how):
            print(f"worker {worker}: {how}")
        case _ if es.events.is_warning(event):
            print(es.events.sentence(event))


pipeline = es.Pipeline("numbers").source(es.Range(3)).collect()
pipeline.run(listener=alert)
```

`listener=` takes a function of one event, or an object with `on_event(event)`, such as an `es.Listener`. It is
called on the driver's thread, so return quickly. (Only `Stalled` may come from another thread, while the store is
being opened.) An error that it raises on the driver's thread ends the run.

`es.events.sentence(event)` gives the English sentence that the terminal and the log show, or `None` for events
that only carry figures. `es.events.is_warning(event)` tells whether the event needs your attention. `result.events`
holds the newest 1,000 events with a sentence, and `result.notes` their sentences.

Every event has `at`, the time when it was sent, in seconds since 1970. Passwords are removed from texts before an
event is sent. The history of a run keeps every event under the kind given below, unless it is marked as live only.
"""


def page() -> str:
    """The whole document."""
    parts = [INTRO]
    known = set(get_args(events.RunEvent))
    for title, names in _sections():
        parts.append(f"## {title}\n")
        for name in names:
            kind = getattr(events, name)
            if kind in known:
                parts.append(_event(kind))
            elif kind is not events.Event:
                parts.append(_described(kind))
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, list[str]]]:
    """The headings in the module, which are comments, and the classes below each."""
    title, names = "", list[str]()
    for line in inspect.getsource(events).splitlines():
        if line.startswith("# ") and line.endswith("."):
            if names and title:
                yield title, names
            title, names = line.removeprefix("# ").removesuffix("."), []
        elif line.startswith("class "):
            names.append(line.removeprefix("class ").partition("(")[0].partition(":")[0])
    yield title, names


def _event(kind: type) -> str:
    kept = "Live only." if kind in LIVE_ONLY else f"Kept as `{KIND_OF[kind]}`."
    return f"{_described(kind)}\n{kept}\n"


def _described(kind: type) -> str:
    says = {name: text for owner in kind.__mro__[::-1] for name, text in _texts(owner).items()}
    rows = [
        f"| `{field.name}` | `{_type(field)}` | {says.get(field.name, '')} |".replace("|  |", "| |")
        for field in dataclasses.fields(kind)
        if field.name != "at"
    ]
    table = ["| Field | Type | Meaning |", "| --- | --- | --- |", *rows]
    text = inspect.cleandoc(kind.__doc__ or "")
    return "\n".join([f"### {kind.__name__}\n", text, "", *(table if rows else []), ""])


def _type(field: "dataclasses.Field[object]") -> str:
    name = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    for module in ("everstream.events.", "typing."):
        name = name.replace(module, "")
    return name.replace("|", "\\|")


def _texts(kind: type) -> dict[str, str]:
    """Field -> the string below it in this class."""
    texts: dict[str, str] = {}
    body = _bodies().get(kind.__name__, [])
    for statement, below in pairwise(body):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                texts[name] = " ".join(str(text).split())
    return texts


@cache
def _bodies() -> dict[str, list[ast.stmt]]:
    """Class -> its statements."""
    tree = ast.parse(inspect.getsource(events))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


if __name__ == "__main__":
    PAGE.write_text(page())
