"""What a page reads from the store of a run: the state of an operator, and its dead letters.

Both are read on request, one at a time, and never more than fits on a page: use `everstream state`
for larger state.
"""

import json
import pickle
import threading
from typing import Any

from everstream.connectors.dead_letters import folder_of
from everstream.connectors.files.filesystem import names_in
from everstream.connectors.files.parts import PartName
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.errors import EnvironmentFault, EverstreamError, UserError, said
from everstream.inspection.checkpoints import choose, open_store, survey_of
from everstream.inspection.operator_state import require_operator, rows_of, shown

LARGEST_STATE = 64 * 1024 * 1024
MOST_ROWS = 1_000
LONGEST_TEXT = 500
PART_BYTES = 1024 * 1024
"""The maximum number of bytes read of a file with dead letters."""

_one_at_a_time = threading.Lock()


def state(
    store: str, store_key: str | None, operator: str, top: int | None, key: str | None
) -> dict[str, Any]:
    """The largest entries of an operator's state in the newest checkpoint, or those of one key."""
    opened = open_store(store, store_key)
    survey, _ = survey_of(opened)
    manifest = EpochManifest.from_json(choose(survey, None).body)
    require_operator(manifest, operator)
    size = sum(
        record.restore_bytes for record in manifest.records.values() if operator in record.operators
    )
    if size > LARGEST_STATE:
        raise UserError(
            f"the checkpoint of '{operator}' has {size:,} bytes, too much for a page: use "
            f"everstream state STORE {operator}."
        )
    with _one_at_a_time:
        try:
            rows = rows_of(opened, operator, manifest.epoch)
        except EverstreamError:
            raise
        except Exception as error:  # a user's class may do anything when it is loaded
            raise EnvironmentFault(
                f"the state of '{operator}' cannot be read here: {type(error).__name__}: {said(error)}"
            ) from error
    if key is not None:
        rows = [row for row in rows if key in (shown(row[2]), repr(row[2]))]
    sized = [(size_of(row[3]), row) for row in rows]
    sized.sort(key=lambda pair: pair[0], reverse=True)
    return {
        "operator": operator,
        "epoch": int(manifest.epoch),
        "entries": len(rows),
        "bytes": sum(size for size, _ in sized),
        "rows": [
            {
                "shard": shard,
                "state": name,
                "key": _cut(shown(of)),
                "value": _cut(shown(value)),
                "bytes": size,
            }
            for size, (shard, name, of, value) in sized[: min(top or 100, MOST_ROWS)]
        ],
    }


def dead_letters(store: str, operator: str, most: int) -> dict[str, Any]:
    """The newest records that an operator has skipped, newest first."""
    folder = folder_of(store, operator)
    names = [PartName.parse(text, folder.ending) for text in names_in(folder.fs, folder.path)]
    parts = [name for name in names if name is not None]
    parts.sort(key=lambda name: (name.checkpoint, name.shard), reverse=True)
    letters: list[dict[str, Any]] = []
    for name in parts:
        if len(letters) >= most:
            break
        lines = _last_lines(folder.fs, folder.path_of(name))
        letters += [_letter(line, name) for line in reversed(lines)][: most - len(letters)]
    return {"operator": operator, "parts": len(parts), "letters": letters}


def size_of(value: Any) -> int:
    try:
        return len(pickle.dumps(value, protocol=5))
    except Exception:  # it may be of any class
        return len(repr(value))


def _last_lines(fs: Any, path: str) -> list[str]:
    try:
        size = fs.size(path)
        data = fs.cat_file(path, start=max(0, size - PART_BYTES), end=size)
    except OSError as error:
        raise EnvironmentFault(f"'{path}' cannot be read: {error}.") from error
    lines: list[str] = data.decode(errors="replace").splitlines()
    return lines[1:] if size > PART_BYTES else lines


def _letter(line: str, part: PartName) -> dict[str, Any]:
    try:
        letter = json.loads(line)
    except ValueError:
        return {"error": "this line cannot be read", "record": _cut(line), "epoch": part.checkpoint}
    record = letter["repr"] if "repr" in letter else json.dumps(letter.get("record"))
    return {
        "shard": part.shard,
        "epoch": part.checkpoint,
        "error": _cut(str(letter.get("error"))),
        "place": letter.get("place"),
        "record": _cut(record),
    }


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
