"""The source of the kernels for one set of transactions.

It is a copy of `drivers` with the real `step`, `redo`, `project` and `walk`.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from everstream.transactions.kernels import drivers
from everstream.transactions.layout import COMMITTED, SLOTS, SPIN, TYPES, DataLayout

Walk = Callable[..., None]


def kernel_source(layout: DataLayout, interpreted: bool, walks: Iterable[str]) -> str:
    writer = _Writer(layout, interpreted)
    functions = [writer.step(), writer.redo(), writer.project(), writer.walk(), *walks]
    head = "from typing import Any\n\n" + "\n".join(_constants())
    return head + "\n\n\n" + "\n\n".join(f"@kernel\n{function}" for function in functions)


def _constants() -> list[str]:
    return [
        f"{name} = {value}"
        for name, value in vars(drivers).items()
        if name.isupper() and isinstance(value, int)
    ]


@cache
def walk_sources(further: tuple[Walk, ...]) -> dict[str, str]:
    """The source of the walks in `drivers`, without their interface, and of further ones."""
    own: list[Any] = [
        value
        for name, value in vars(drivers).items()
        if inspect.isfunction(value)
        and (value.__module__, value.__qualname__) == (drivers.__name__, name)
    ]
    return {walk.__name__: inspect.getsource(walk) for walk in (*own, *further)}


class _Writer:
    """Writes the four functions that know the transactions."""

    def __init__(self, layout: DataLayout, interpreted: bool) -> None:
        self._layout = layout
        self._item = ".item()" if interpreted else ""

    def _cases(self, case: Callable[[int], list[str]]) -> str:
        lines = [f"    kind = data[{TYPES}][i]"]
        for number in range(len(self._layout.transactions)):
            lines.append(f"    if kind == {number}:")
            lines.extend(f"        {line}" for line in case(number))
        return "\n".join(lines)

    def _slots(self, number: int) -> list[str]:
        keys = self._layout.transactions[number].keys
        return [f"s{p} = data[{SLOTS}][{p}, i]" for p in range(len(keys))]

    def _table(self, number: int, position: int) -> int:
        return int(self._layout.table_of[number, position])

    def _value(self, number: int, position: int, parts: list[str]) -> str:
        table = self._table(number, position)
        joined = ", ".join(f"{part}{self._item}" for part in parts)
        return f"Record_{table}({joined})" if self._layout.tables[table].is_record else joined

    def _live(self, number: int, position: int) -> str:
        table = self._table(number, position)
        first = self._layout.column_at[table]
        fields = range(len(self._layout.tables[table].fields))
        return self._value(
            number, position, [f"data[{first + field}][s{position}]" for field in fields]
        )

    def _recorded(self, number: int, position: int) -> str:
        places = self._layout.read_places(number, position)
        return self._value(number, position, [f"data[{place}][i]" for place in places])

    def _call(self, function: str, number: int) -> str:
        declared = self._layout.transactions[number]
        positions = {key.parameter: position for position, key in enumerate(declared.keys)}
        arguments = [
            f"v{positions[name]}"
            if name in positions
            else f"data[{self._layout.field_at[name]}][i]{self._item}"
            for name in declared.parameters
        ]
        return f"{function}_{number}({', '.join(arguments)})"

    def _write(self, number: int, write: int) -> list[str]:
        """Lines that put output number `write` into its table."""
        declared = self._layout.transactions[number]
        position = declared.writes[write]
        table = self._table(number, position)
        first = self._layout.column_at[table]
        value = f"u[{write}]" if len(declared.writes) > 1 else "u"
        if self._layout.tables[table].is_record:
            fields = range(len(self._layout.tables[table].fields))
            lines = [f"data[{first + f}][s{position}] = {value}[{f}]" for f in fields]
        else:
            lines = [f"data[{first}][s{position}] = {value}"]
        return [*lines, f"data[{self._layout.written_at[table]}][s{position}] = 1"]

    def _spin(self, operations: int, otherwise: str) -> list[str]:
        return [
            f"if spin(data[{SPIN}] * {operations}, i) == 0:",
            f"    return {otherwise}".rstrip(),
        ]

    def step(self) -> str:
        def case(number: int) -> list[str]:
            declared = self._layout.transactions[number]
            lines = self._slots(number)
            for position in range(len(declared.keys)):
                lines.append(f"v{position} = {self._live(number, position)}")
                places = self._layout.read_places(number, position)
                record = (
                    len(places) > 1 or self._layout.tables[self._table(number, position)].is_record
                )
                for field, place in enumerate(places):
                    part = f"v{position}[{field}]" if record else f"v{position}"
                    lines.append(f"data[{place}][i] = {part}")
            lines.extend(self._spin(len(declared.keys), "False"))
            lines.append(f"r = {self._call('decide', number)}")
            lines.append("if r is None:")
            lines.append(f"    data[{COMMITTED}][i] = 0")
            lines.append("    return False")
            lines.append("u = unwrap(r)")
            for write in range(len(declared.writes)):
                lines.extend(self._write(number, write))
            lines.append(f"data[{COMMITTED}][i] = 1")
            lines.append("return True")
            return lines

        return f"def step(i: int, data: Any) -> bool:\n{self._cases(case)}\n    return False\n"

    def redo(self) -> str:
        def case(number: int) -> list[str]:
            declared = self._layout.transactions[number]
            lines = self._slots(number)
            lines.extend(f"v{p} = {self._live(number, p)}" for p in range(len(declared.keys)))
            lines.extend(self._spin(len(declared.keys), ""))
            lines.extend(self._committed_result(number))
            for write in range(len(declared.writes)):
                lines.extend(self._write(number, write))
            lines.append("return")
            return lines

        return f"def redo(i: int, data: Any) -> None:\n{self._cases(case)}\n"

    def _committed_result(self, number: int) -> list[str]:
        return [
            f"r = {self._call('commit', number)}",
            "if r is None:",
            "    return",
            "u = unwrap(r)",
        ]

    def project(self) -> str:
        """One key's part of a transaction.

        Where a transaction names the same key twice, both see the value before it and
        the last write stays, so only the last position naming a key is ever projected.
        """

        def case(number: int) -> list[str]:
            declared = self._layout.transactions[number]
            lines = self._slots(number)
            for write, own in enumerate(declared.writes):
                lines.append(f"if position == {own}:")
                inner = [f"v{own} = {self._live(number, own)}"]
                for position in range(len(declared.keys)):
                    if position == own:
                        continue
                    inner.append(f"v{position} = {self._recorded(number, position)}")
                    if self._table(number, position) == self._table(number, own):
                        inner.append(f"if s{position} == s{own}:")
                        inner.append(f"    v{position} = v{own}")
                inner.extend(self._spin(1, ""))
                inner.extend(self._committed_result(number))
                inner.append("if keep:")
                inner.extend(f"    {line}" for line in self._write(number, write))
                inner.append("return")
                lines.extend(f"    {line}" for line in inner)
            lines.append("return")
            return lines

        head = "def project(i: int, position: int, data: Any, keep: bool) -> None:"
        return f"{head}\n{self._cases(case)}\n"

    def walk(self) -> str:
        """One partition's part: live values inside the partition, recorded ones outside."""

        def case(number: int) -> list[str]:
            declared = self._layout.transactions[number]
            lines = self._slots(number)
            for position in range(len(declared.keys)):
                table = self._table(number, position)
                lines.append(f"in{position} = parts[{table}][s{position}] == part")
                lines.append(f"if in{position}:")
                lines.append(f"    v{position} = {self._live(number, position)}")
                lines.append("else:")
                lines.append(f"    v{position} = {self._recorded(number, position)}")
            lines.append("mine = 0")
            lines.extend(f"if in{position}:\n            mine += 1" for position in declared.writes)
            lines.append(f"if spin(data[{SPIN}] * mine, i) == 0:")
            lines.append("    return")
            lines.extend(self._committed_result(number))
            for write, position in enumerate(declared.writes):
                lines.append(f"if in{position}:")
                lines.extend(f"    {line}" for line in self._write(number, write))
            lines.append("return")
            return lines

        head = "def walk(i: int, part: int, data: Any, parts: Any) -> None:"
        return f"{head}\n{self._cases(case)}\n"
