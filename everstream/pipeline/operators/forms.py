"""The forms in which `map_batches` gives a batch to a function, and takes what it returns.

A conversion keeps every value and its type, or refuses it: NumPy has no null and no time zone, and an
index of pandas is no column.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of

Form: TypeAlias = Literal["polars", "pandas", "arrow", "numpy"]
_MODULES: Final[dict[str, Form]] = {
    "polars": "polars",
    "pandas": "pandas",
    "pyarrow": "arrow",
    "numpy": "numpy",
}
_PREFIXES: Final[dict[str, Form]] = {
    "pl.": "polars",
    "polars.": "polars",
    "pd.": "pandas",
    "pandas.": "pandas",
    "pa.": "arrow",
    "pyarrow.": "arrow",
    "np.": "numpy",
    "numpy.": "numpy",
}
_ALIKE: Final = frozenset({int, float, bool, str})


def form_for(function: Callable[..., Any], given: Any) -> tuple[Form | None, bool]:
    """The form that `as_` or the annotation of the function's parameter asks for; None: as it comes.

    And whether it wants a RecordBatch of Arrow, not a Table.
    """
    if given is not None:
        if given not in get_args(Form):
            choices = ", ".join(map(repr, get_args(Form)))
            raise UserError(f"map_batches(as_={given!r}): use one of {choices}.")
        return given, False
    wanted = _annotation(function)
    if isinstance(wanted, str):
        text = wanted.replace(" ", "").strip("'\"").removeprefix("dict[str,")
        form = next((one for prefix, one in _PREFIXES.items() if text.startswith(prefix)), None)
        return form, "RecordBatch" in text
    if typing.get_origin(wanted) is dict:
        wanted = get_args(wanted)[-1]
    kind = typing.get_origin(wanted) or wanted
    module = getattr(kind, "__module__", "") if isinstance(kind, type) else ""
    return _MODULES.get(module.partition(".")[0]), getattr(kind, "__name__", "") == "RecordBatch"


def _annotation(function: Callable[..., Any]) -> Any:
    try:
        first = next(iter(inspect.signature(function).parameters.values()))
    except (StopIteration, TypeError, ValueError):
        return None
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        return typing.get_type_hints(called).get(first.name, first.annotation)
    except Exception:  # a name that exists only for type checkers
        return first.annotation


def in_form(batch: Batch, form: Form | None, record_batch: bool, wanted_by: str) -> Any:
    """The batch as the function wants it."""
    if form is None:
        return batch
    if form == "numpy" and isinstance(batch, list) and not isinstance(batch[0], dict):
        return _array(batch, wanted_by)
    frame = columns_of(batch, wanted_by)
    match form:
        case "polars":
            return frame
        case "pandas":
            return frame.to_pandas(use_pyarrow_extension_array=True)
        case "arrow":
            table = frame.to_arrow()
            return table.combine_chunks().to_batches()[0] if record_batch else table
        case "numpy":
            return {column.name: _column(column, wanted_by) for column in frame}


def as_batch_of(result: Any, wanted_by: str) -> Batch:
    """What the function returned, as a batch."""
    if isinstance(result, pl.DataFrame | list):
        return result
    if isinstance(result, np.ndarray) and result.dtype.names is None:
        if result.ndim != 1:
            raise UserError(
                f"the function given to '{wanted_by}' returned an array with {result.ndim} dimensions: "
                "return a dict of columns, or an array with one."
            )
        records: list[Any] = result.tolist()
        return records
    if isinstance(result, np.ndarray):
        return pl.DataFrame({name: result[name] for name in result.dtype.names or ()})
    if isinstance(result, dict):
        return pl.DataFrame(result)
    module = type(result).__module__.partition(".")[0]
    if module == "pandas" and type(result).__name__ == "DataFrame":
        names = [name for name in result.index.names if name is not None]
        if names:
            raise UserError(
                f"the function given to '{wanted_by}' returned a pandas DataFrame with the index "
                f"{', '.join(map(repr, names))}, which is not a column: return frame.reset_index()."
            )
        return pl.from_pandas(result)
    if module == "pyarrow" and type(result).__name__ in ("Table", "RecordBatch"):
        frame = pl.from_arrow(result)
        assert isinstance(frame, pl.DataFrame)
        return frame
    raise UserError(
        f"the function given to '{wanted_by}' must return a DataFrame of Polars or pandas, an Arrow "
        f"table, a NumPy array, a dict of arrays or a list, not {type(result).__name__}."
    )


def _column(column: pl.Series, wanted_by: str) -> Any:
    text = column.dtype in (pl.String, pl.Binary, pl.Object) or column.dtype.is_nested()
    if column.null_count() and not text:
        raise UserError(
            f"'{wanted_by}': column '{column.name}' has nulls, which NumPy does not have for "
            f"{column.dtype}. Fill them before (fill_null), or use as_='arrow' or 'pandas'."
        )
    if getattr(column.dtype, "time_zone", None) is not None:
        raise UserError(
            f"'{wanted_by}': column '{column.name}' has a time zone, which NumPy does not have. Use "
            "as_='arrow' or 'pandas'."
        )
    return column.to_numpy()


def _array(records: list[Any], wanted_by: str) -> Any:
    kinds = {*map(type, records)}
    array = np.array(records) if len(kinds) == 1 and kinds <= _ALIKE else None
    if array is None or array.dtype == object or array.dtype.kind == "u":
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UserError(
            f"'{wanted_by}' wants a NumPy array, and no type of NumPy holds these records exactly "
            f"({names}). Give them one type with a map, or turn them into rows with columns."
        )
    return array
