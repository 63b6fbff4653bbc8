"""Which stages always give the same output for the same batch.

What a source sent through such stages can be reproduced by reading it again, so it need not be
logged. In doubt, a stage is not pure: its output is logged, and nothing is assumed about it.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from everstream.pipeline.operator import Operator
from everstream.pipeline.source import Source

# Polars writes an expression as JSON: every node is the name of its kind, or an object with the kind as
# its only key. Only the kinds and functions listed here are known to depend on nothing but the batch. All
# others are assumed to depend on more: Python functions, plug-ins, randomness, windows and sums without a
# defined order, and functions like `exp` whose last digit may differ between machines. A constant is a
# constant, even if it was the time of day when the pipeline was written.
_OPERATORS = {
    *("Eq", "EqValidity", "NotEq", "NotEqValidity", "Lt", "LtEq", "Gt", "GtEq"),
    *("Plus", "Minus", "Multiply", "Divide", "TrueDivide", "FloorDivide", "Modulus"),
    *("And", "Or", "Xor", "LogicalAnd", "LogicalOr"),
}
_CONSTANTS = {"Dyn", "Scalar", "Series"}
_TYPES = {
    *("Boolean", "String", "Binary", "Null", "Date", "Time", "Datetime", "Duration", "Decimal"),
    *(f"{kind}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64, 128)),
    *("Float32", "Float64"),
}
"""Types to cast to. Not categories: their codes depend on what a process has seen before."""
_RENAMINGS = {"Prefix", "Suffix", "ToLowercase", "ToUppercase"}
_FUNCTIONS: dict[str, set[str]] = {
    "": {
        *("Abs", "Negate", "Sign", "Floor", "Ceil", "Round", "Clip", "Reinterpret"),
        *("FillNull", "Coalesce", "Replace", "AsStruct"),
        *("MaxHorizontal", "MinHorizontal"),
    },
    "Boolean": {
        *("Not", "IsNull", "IsNotNull", "IsNan", "IsNotNan", "IsFinite", "IsInfinite"),
        *("IsIn", "IsBetween", "AllHorizontal", "AnyHorizontal"),
    },
    "Pow": {"Sqrt"},
    "StringExpr": {
        *("Uppercase", "Lowercase", "Titlecase", "Reverse", "LenChars", "LenBytes"),
        *("Contains", "StartsWith", "EndsWith", "Find", "CountMatches"),
        *("Extract", "ExtractAll", "Replace", "Slice", "Head", "Tail"),
        *("StripChars", "StripCharsStart", "StripCharsEnd", "StripPrefix", "StripSuffix"),
        *("PadStart", "PadEnd", "ZFill", "Split", "SplitExact", "SplitN"),
        *("ConcatHorizontal", "Format", "HexEncode", "Base64Encode"),
        *("ToInteger", "ToDecimal", "Strptime"),
    },
    "TemporalExpr": {
        *("Year", "IsoYear", "Quarter", "Month", "Week", "WeekDay", "Day", "OrdinalDay"),
        *("Hour", "Minute", "Second", "Millisecond", "Microsecond", "Nanosecond"),
        *("Date", "Time", "Truncate", "Round", "OffsetBy", "TimeStamp", "ToString"),
        *("TotalDays", "TotalHours", "TotalMinutes", "TotalSeconds", "TotalMilliseconds"),
        *("TotalMicroseconds", "TotalNanoseconds", "Duration", "DatetimeFunction"),
    },
    "StructExpr": {"FieldByName"},
    "ListExpr": {"Length", "Get", "Concat"},
}
"""By family; the empty name is for functions that have none."""


class _Unknown(Exception):
    """A node that is not listed."""


def depends_on_the_batch_only(expression: pl.Expr) -> bool:
    try:
        pending = [json.loads(expression.meta.serialize(format="json"))]
        while pending:
            pending.extend(_inputs(pending.pop()))
    except (Exception, pl.exceptions.PanicException):
        # It may contain any object of the user, and serialising that may raise anything.
        return False
    return True


def _inputs(node: Any) -> Iterator[Any]:
    """The expressions a node is made of, if the node is listed."""
    kind, body = _named(node)
    match kind:
        case "Column" | "Selector" | "Len":
            return
        case "Literal":
            _require(body, _CONSTANTS)
        case "Alias":
            yield body[0]
        case "KeepName":
            yield body
        case "RenameAlias":
            _require(body["function"], _RENAMINGS)
            yield body["expr"]
        case "Cast":
            of, to = _named(body["dtype"])
            if of != "Literal":
                raise _Unknown(of)
            _require(to, _TYPES)
            yield body["expr"]
        case "BinaryExpr":
            _require(body["op"], _OPERATORS)
            yield from (body["left"], body["right"])
        case "Ternary":
            yield from (body["predicate"], body["truthy"], body["falsy"])
        case "Function":
            family, function = _named(body["function"])
            if family in _FUNCTIONS:
                _require(function, _FUNCTIONS[family])
            else:
                _require(family, _FUNCTIONS[""])
            yield from body["input"]
        case _:
            raise _Unknown(kind)


def _named(node: Any) -> tuple[str, Any]:
    if isinstance(node, str):
        return node, None
    ((kind, body),) = node.items()
    return kind, body


def _require(node: Any, known: set[str]) -> None:
    kind, _ = _named(node)
    if kind not in known:
        raise _Unknown(kind)


def is_plain(expression: Any) -> bool:
    """A column name or constant, or an expression that depends on nothing but its batch."""
    if isinstance(expression, pl.Expr):
        return depends_on_the_batch_only(expression)
    return isinstance(expression, str | int | float | bool | None)


_CALLS = ("AnonymousFunction", "AnonymousAgg", "MapFieldNames", '"RenameAlias":{"function":{"Map"')


def calls_functions(expression: Any) -> bool:
    """Whether an expression may call a Python function of the user."""
    if not isinstance(expression, pl.Expr):
        return False
    try:
        text = expression.meta.serialize(format="json")
    except (Exception, pl.exceptions.PanicException):
        return True  # it contains an object of the user
    return any(call in text for call in _CALLS)


def all_plain(expressions: Iterable[Any]) -> bool:
    return all(is_plain(expression) for expression in expressions)


def can_be_read_again(source: Source, operators: Iterable[Operator]) -> bool:
    """Whether a source's batches, sent through these operators, are the same every time."""
    return source.exact_batches and all(operator.pure for operator in operators)
