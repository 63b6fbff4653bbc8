"""The file of a monitor: CSV, row by row, so that a killed program loses at most its last row.

Parquet cannot be written row by row, so the rows are spooled beside the file and converted at the
end; a killed program leaves the spool, and its successor continues it.
"""

import csv
import os
from pathlib import Path
from typing import IO, Any

import polars as pl

from everstream.errors import UserError
from everstream.observability.monitoring.machine import Cells

CSV, PARQUET = ".csv", ".parquet"
SPOOL = ".rows"


class Sheet:
    """Rows with fixed columns, in a file."""

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        self.path = Path(path).absolute()
        if self.path.suffix not in (CSV, PARQUET):
            raise UserError(
                f"the monitor's file {self.path.name}: the name must end in {CSV} or {PARQUET}."
            )
        self._spooled = self.path.suffix == PARQUET
        self._written_to = self.path.with_name(self.path.name + SPOOL * self._spooled)
        self._append = append
        self._file: IO[str] | None = None
        self._rows: Any = None

    def write(self, row: Cells) -> None:
        """Add a row; the kernel has it when this returns."""
        if self._file is None:
            self._open(list(row))
        assert self._file is not None
        self._rows.writerow(row)
        self._file.flush()

    def _open(self, columns: list[str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        goes_on = self._append and _columns_in(self._written_to) == columns
        if goes_on:
            _drop_half_a_row(self._written_to)
        self._file = self._written_to.open("a" if goes_on else "w", newline="")
        self._rows = csv.DictWriter(self._file, columns)
        if not goes_on:
            self._rows.writeheader()

    def close(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        if self._spooled:
            read_sheet(self._written_to).write_parquet(self.path)
            self._written_to.unlink()


def read_sheet(path: str | os.PathLike[str]) -> pl.DataFrame:
    path = Path(path)
    if path.suffix == PARQUET:
        return pl.read_parquet(path)
    return pl.read_csv(path, infer_schema_length=None)


def _columns_in(path: Path) -> list[str]:
    try:
        with path.open(newline="") as file:
            return next(csv.reader(file), [])
    except FileNotFoundError:
        return []


def _drop_half_a_row(path: Path) -> None:
    """A killed writer may have left one."""
    with path.open("rb+") as file:
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
