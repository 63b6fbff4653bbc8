"""The file of a comparison: what was measured so far, so that it can be stopped and gone on with."""

import json
import os
import platform
from datetime import date
from pathlib import Path

from everstream_lab.bench.protocols.costs import Costs
from everstream_lab.bench.protocols.grid import Setting
from everstream_lab.bench.protocols.measure import Measured
from everstream_lab.bench.workloads.catalogue import QUERIES


class Results:
    """What is in the file, and what comes to it."""

    def __init__(self, file: Path) -> None:
        """Nothing is measured yet if there is no such file."""
        body = json.loads(file.read_text()) if file.exists() else {}
        runs = [Measured.from_json(entry) for entry in body.get("runs", [])]
        self.file = file
        self.runs = {measured.cell.key: measured for measured in runs}
        """By key of their cell."""
        self.costs = Costs(**body["costs"]) if body.get("costs") else None

    def save(self, setting: Setting) -> None:
        """Whole or not at all: a killed command must not take hours of measuring with it."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        body = {
            "date": date.today().isoformat(),
            "machine": {
                "python": platform.python_version(),
                "system": platform.platform(),
                "cores": os.cpu_count(),
            },
            "factor": setting.factor,
            "run_s": setting.run_s,
            "cyclic": [name for name, query in QUERIES.items() if query.cyclic],
            "costs": None if self.costs is None else self.costs.to_json(),
            "runs": [measured.to_json() for measured in self.runs.values()],
        }
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(body))
        partial.replace(self.file)
