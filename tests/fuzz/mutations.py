"""What can happen to a file: a seed says which file of a folder, and what."""

import random
from pathlib import Path

OURS = ("store", "journal", "lines/_pending", "parquet/_pending")
"""Where a run keeps what it needs to go on; the rest is the user's own."""


def files_of(folder: Path) -> list[Path]:
    """Every file that is ours, but for dead letters that are out: nobody reads them again."""
    paths = [path for part in OURS for path in sorted((folder / part).rglob("*")) if path.is_file()]
    return [p for p in paths if not ("dead_letters" in p.parts and p.name.startswith("part-"))]


def kind_of(path: Path, folder: Path) -> str:
    """What sort of file it is: rare sorts are hit as often as frequent ones."""
    if not path.stat().st_size:
        return "empty"  # fences, and output that was begun and is still in a buffer
    parts = path.relative_to(folder).parts
    if parts[0] == "store" and len(parts) > 2:
        return "/".join([parts[1], *(part for part in parts if part == "_pending")])
    return f"{parts[0]}/{path.name.split('-')[0]}"


def mutate(folder: Path, turn: int, chance: random.Random) -> str:
    """Change one file, of each kind in turn; says what was done."""
    kinds: dict[str, list[Path]] = {}
    for path in files_of(folder):
        kinds.setdefault(kind_of(path, folder), []).append(path)
    siblings = kinds[sorted(kinds)[turn % len(kinds)]]
    path = chance.choice(siblings)
    data = path.read_bytes()
    ways = ["extend", "duplicate"]
    if data:
        ways += ["flip", "flip", "flip", "flip", "cut", "zero"]
    if not path.name.startswith("part-"):  # what was shown, whole, is the user's to keep
        ways += ["delete", "swap"] if len(siblings) > 1 else ["delete"]
    way = chance.choice(ways)
    position = chance.randrange(len(data)) if data else 0
    if way == "flip":
        changed = bytes([data[position] ^ chance.randrange(1, 256)])
        path.write_bytes(data[:position] + changed + data[position + 1 :])
    elif way == "cut":
        path.write_bytes(data[:position])
    elif way == "zero":
        path.write_bytes(data[:position] + bytes(len(data) - position))
    elif way == "extend":
        path.write_bytes(data + chance.randbytes(chance.randrange(1, 100)))
    elif way == "swap":
        path.write_bytes(chance.choice([p for p in siblings if p != path]).read_bytes())
    elif way == "duplicate":
        path.with_name(path.name + ".copy").write_bytes(data)
    else:
        path.unlink()
    return f"{way} {path.relative_to(folder)} at byte {position} of {len(data)}"
