"""Reads and writes the quantities people type: `10s`, `74 ms`, `2GB`, `2%`, `1.5M`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_DURATIONS_S = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0,
    "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_SIZES_BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_NUMBER = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9]*)\s*$")


class QuantityError(ValueError):
    """A quantity that cannot be read; the message shows how to write it."""


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.match(text)
    if match is None:
        raise QuantityError(f"cannot read {text!r} as {what}: write it like {example}")
    return float(match.group(1)), match.group(2)


def _scaled(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    value, unit = _split(text.lower().removesuffix("/s"), f"a {what}", example)
    if unit not in units:
        raise QuantityError(f"cannot read the {what} {text!r}: write it like {example}")
    return value * units[unit]


def parse_duration_s(text: str) -> float:
    """
    >>> parse_duration_s("74s"), parse_duration_s("2 min"), parse_duration_s("1h")
    (74.0, 120.0, 3600.0)
    """
    value, unit = _split(text, "a duration", "10s, 250ms or 2h")
    if unit.lower() not in _DURATIONS_S:
        raise QuantityError(f"{text!r} needs a unit of time: 10s, 250ms, 80us, 5min, 2h or 1d")
    return value * _DURATIONS_S[unit.lower()]


def parse_size_bytes(text: str) -> float:
    """
    >>> parse_size_bytes("2GB"), parse_size_bytes("1 KiB"), parse_size_bytes("100MB/s")
    (2000000000.0, 1024.0, 100000000.0)
    """
    return _scaled(text, _SIZES_BYTES, "size", "512MB or 2GiB")


def parse_rate_per_s(text: str) -> float:
    """
    >>> parse_rate_per_s("1.5M"), parse_rate_per_s("5000/s")
    (1500000.0, 5000.0)
    """
    return _scaled(text, _COUNTS, "rate", "5000, 20k/s or 1.5M/s")


def parse_fraction(text: str) -> float:
    """
    >>> parse_fraction("2%"), parse_fraction("0.02")
    (0.02, 0.02)
    """
    value, unit = _split(text, "a share", "2% or 0.02")
    if unit not in ("", "%"):
        raise QuantityError(f"cannot read the share {text!r}: write it like 2% or 0.02")
    fraction = value / 100 if unit == "%" else value
    if not 0 < fraction < 1:
        raise QuantityError(f"the share {text!r} must lie between 0 and 100 %")
    return fraction


def show_duration(value_s: float) -> str:
    """
    >>> show_duration(74.2), show_duration(0.0032), show_duration(5400)
    ('74.2 s', '3.2 ms', '1.5 h')
    """
    size = abs(value_s)
    if size == 0:
        return "0 s"
    if size < 1e-3:
        return f"{value_s * 1e6:.3g} µs"
    if size < 1:
        return f"{value_s * 1e3:.3g} ms"
    if size < 600:
        return f"{value_s:.3g} s"
    if size < 5400:
        return f"{value_s / 60:.3g} min"
    if size < 172800:
        return f"{value_s / 3600:.3g} h"
    return f"{value_s / 86400:.3g} d"


def show_size(size_bytes: float) -> str:
    """
    >>> show_size(2_000_000_000)
    '2 GB'
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def show_count(value: float) -> str:
    """
    >>> show_count(1_100_000), show_count(950)
    ('1.1 M', '950')
    """
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f}"
