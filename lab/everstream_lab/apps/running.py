"""Runs an application's pipeline and holds its result against the sequential program's."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import everstream as es
from everstream.pipeline.checkpointing import Checkpointing
from everstream_lab.apps.application import Application, checksum
from everstream_lab.apps.inputs import expected_checksum


@dataclass(frozen=True)
class Run:
    """What came of it: the run, its result file, and whether that is the right one."""

    application: str
    run: es.RunResult
    output: Path
    checksum: str
    expected: str

    @property
    def exact(self) -> bool:
        return self.checksum == self.expected


def run_pipeline(
    application: Application,
    folder: Path,
    output: Path,
    *,
    shards: int = 2,
    batch: int | None = None,
    checkpoint: Checkpointing | None = None,
    kill: Sequence[str | es.Kill] = (),
    master: str = "local[*]",
    annotated: bool = False,
) -> Run:
    """Run the pipeline on the input in `folder` and write its result to `output`."""
    make = application.annotated if annotated else application.pipeline
    with tempfile.TemporaryDirectory(prefix="everstream-", dir=output.parent) as place:
        parts = Path(place, "parts")
        pipeline = make(
            folder, parts, shards=shards, batch=application.batch if batch is None else batch
        )
        result = pipeline.run(
            checkpoint=checkpoint or es.Coordinated(every="1s"),
            store=Path(place, "store"),
            kill=kill,
            master=master,
        )
        application.finish(folder, parts, output, result.returned)
    actual, expected = checksum(output), expected_checksum(application, folder)
    return Run(application.name, result, output, actual, expected)
