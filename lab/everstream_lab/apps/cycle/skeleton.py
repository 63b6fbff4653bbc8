"""A user's own application: a file that runs at once, with stages of the names they gave.

The stages do something small until they are written: each is a function of one item, and the
generated file has everything `Application` asks for, down to an input for each class.
"""

import keyword

from everstream.errors import UserError

TEMPLATE = '''\
"""{title}: {count} stage(s), {flow}.

Run it: everstream apps exec {name}
Edit the stages below. Each takes one item and returns what the next one gets.
"""

import json
from pathlib import Path
from typing import Any

import everstream as es
from everstream_lab.apps.application import Application, Tell, json_line

SIZES = {{"test": 100, "small": 1_000, "medium": 10_000, "large": 100_000, "huge": 1_000_000}}
"""Class of input -> how many items it has."""


def make_input(size: int, folder: Path, tell: Tell) -> None:
    """Fill a folder with an input of this size: the same one every time."""
    with (folder / "items.jsonl").open("w") as file:
        for number in range(size):
            file.write(json.dumps({{"number": number, "text": f"item {{number}}"}}) + "\\n")
    tell(size, size)


def items(folder: Path) -> list[dict[str, Any]]:
    """The items of an input, in order."""
    with (folder / "items.jsonl").open() as file:
        return [json.loads(line) for line in file]
{stages}

STAGES = ({stage_names})


def sequential(folder: Path, output: Path) -> None:
    """The program without any parallelism: it says what is right."""
    with output.open("wb") as file:
        lines = []
        for item in items(folder):
            for stage in STAGES:
                item = stage(item)
            lines.append(json_line(item))
        file.writelines(sorted(lines))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    """The same stages as a pipeline."""
    application = es.Pipeline("{name}")
    stream = application.source(es.FromList(items(folder), batch=batch), name="items").on_demand()
{maps}
    return stream.sink(es.JsonLines(parts))


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    """The same as a loop whose parts are stages."""
    with es.ToStream(batch=batch):
        for item in items(folder):
{withs}


APPLICATION = Application(
    name="{name}",
    title="{title}",
    sizes=SIZES,
    make_input=make_input,
    items=items,
    stages=STAGES,
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="{name}.jsonl",
    batch=10,
)
'''

STAGE = '''

def {name}(item: dict[str, Any]) -> dict[str, Any]:
    """Say here what this stage does."""
    return {{**item, "{name}": item["number"] * {factor}}}
'''


def skeleton(name: str, stages: list[str]) -> str:
    """The text of a file for an application of this name with these stages."""
    taken = {
        "make_input",
        "items",
        "sequential",
        "pipeline",
        "annotated",
        "item",
        "json",
        "es",
        "json_line",
    }
    for stage in stages:
        if not stage.isidentifier() or keyword.iskeyword(stage) or stage in taken:
            raise UserError(
                f"stage {stage!r}: a stage becomes a function, so its name must be one that Python "
                "takes, and that the file does not use for something else."
            )
    if len(set(stages)) < len(stages) or not stages:
        raise UserError("name at least one stage, and each only once: --stages parse,count,format.")
    first, *others = stages
    maps = [
        f'    stream = stream.map({first}, name="{first}", shards=shards)',
        *(f'    stream = stream.map({one}, name="{one}")' for one in others),
    ]
    return TEMPLATE.format(
        name=name,
        title=f"The application {name}",
        count=len(stages),
        flow=" then ".join(stages),
        stages="".join(STAGE.format(name=s, factor=n + 2) for n, s in enumerate(stages)),
        stage_names=", ".join(stages) + ("," if len(stages) == 1 else ""),
        maps="\n".join(maps),
        withs="\n".join(_with(stages, number) for number in range(len(stages))),
    )


def _with(stages: list[str], number: int) -> str:
    """The block of one stage: the first is replicated, the last has the sink."""
    stage = stages[number]
    replicate = "replicate=shards, " if number == 0 else ""
    last = number == len(stages) - 1
    sink = ", outputs=[item], sink=es.JsonLines(parts)" if last else ""
    head = f'            with es.Stage({replicate}name="{stage}"{sink}):'
    return f"{head}\n                item = {stage}(item)"
