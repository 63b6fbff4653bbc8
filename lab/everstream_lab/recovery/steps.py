"""What schemes that run transactions again add to the kernels: steps, and the walks they share.

A transaction that is known to commit runs its committed path, which decides nothing. Here the steps
are only the interface that walks are written against; see `everstream.transactions.kernels.drivers`.
"""

from abc import ABC, abstractmethod
from typing import Any

from everstream.transactions.compiled import cycles
from everstream.transactions.kernels.codegen import KernelParts, StepWriter
from everstream.transactions.kernels.drivers import EXECUTE
from everstream.transactions.layout import SPIN, DataLayout


def needed_in(layout: DataLayout) -> list[tuple[tuple[int, int], ...]]:
    """Per read column, those of its users whose value another key's new value depends on."""
    needs = [frozenset[int]().union(*declared.needs) for declared in layout.transactions]
    return [
        tuple(user for user in column.users if user[1] in needs[user[0]]) for column in layout.reads
    ]


class Steps(ABC):
    """What the walks do with one transaction; generated for each set of them."""

    @staticmethod
    @abstractmethod
    def redo(i: int, data: Any) -> None:
        """Run transaction i, known to commit, without recording an outcome."""

    @staticmethod
    @abstractmethod
    def project(i: int, position: int, data: Any, keep: bool) -> None:
        """Compute the new value of one key from recorded reads; `keep` writes it."""

    @staticmethod
    @abstractmethod
    def walk(i: int, part: int, data: Any, parts: Any) -> None:
        """Run what transaction i does to the keys of one partition, others' values as recorded."""


redo, project, walk = Steps.redo, Steps.project, Steps.walk


def write_redo(writer: StepWriter) -> str:
    layout = writer.layout

    def case(number: int) -> list[str]:
        declared = layout.transactions[number]
        lines = writer.slots(number)
        lines.extend(f"v{p} = {writer.live(number, p)}" for p in range(len(declared.keys)))
        lines.extend(writer.spin(len(declared.keys), ""))
        lines.extend(_committed_result(writer, number))
        for write in range(len(declared.writes)):
            lines.extend(writer.write(number, write))
        lines.append("return")
        return lines

    return f"def redo(i: int, data: Any) -> None:\n{writer.cases(case)}\n"


def _committed_result(writer: StepWriter, number: int) -> list[str]:
    return [
        f"r = {writer.call('commit', number)}",
        "if r is None:",
        "    return",
        "u = unwrap(r)",
    ]


def write_project(writer: StepWriter) -> str:
    """One key's part of a transaction.

    Where a transaction names the same key twice, both see the value before it and
    the last write stays, so only the last position naming a key is ever projected.
    """
    layout = writer.layout

    def case(number: int) -> list[str]:
        declared = layout.transactions[number]
        lines = writer.slots(number)
        for write, own in enumerate(declared.writes):
            lines.append(f"if position == {own}:")
            inner = [f"v{own} = {writer.live(number, own)}"]
            for position in range(len(declared.keys)):
                if position == own:
                    continue
                inner.append(f"v{position} = {writer.recorded(number, position)}")
                if writer.table(number, position) == writer.table(number, own):
                    inner.append(f"if s{position} == s{own}:")
                    inner.append(f"    v{position} = v{own}")
            inner.extend(writer.spin(1, ""))
            inner.extend(_committed_result(writer, number))
            inner.append("if keep:")
            inner.extend(f"    {line}" for line in writer.write(number, write))
            inner.append("return")
            lines.extend(f"    {line}" for line in inner)
        lines.append("return")
        return lines

    head = "def project(i: int, position: int, data: Any, keep: bool) -> None:"
    return f"{head}\n{writer.cases(case)}\n"


def write_walk(writer: StepWriter) -> str:
    """One partition's part: live values inside the partition, recorded ones outside."""
    layout = writer.layout

    def case(number: int) -> list[str]:
        declared = layout.transactions[number]
        lines = writer.slots(number)
        for position in range(len(declared.keys)):
            table = writer.table(number, position)
            lines.append(f"in{position} = parts[{table}][s{position}] == part")
            lines.append(f"if in{position}:")
            lines.append(f"    v{position} = {writer.live(number, position)}")
            lines.append("else:")
            lines.append(f"    v{position} = {writer.recorded(number, position)}")
        lines.append("mine = 0")
        lines.extend(f"if in{position}:\n            mine += 1" for position in declared.writes)
        lines.append(f"if spin(data[{SPIN}] * mine, i) == 0:")
        lines.append("    return")
        lines.extend(_committed_result(writer, number))
        for write, position in enumerate(declared.writes):
            lines.append(f"if in{position}:")
            lines.extend(f"    {line}" for line in writer.write(number, write))
        lines.append("return")
        return lines

    head = "def walk(i: int, part: int, data: Any, parts: Any) -> None:"
    return f"{head}\n{writer.cases(case)}\n"


def redo_in_order(committed: Any, data: Any, totals: Any) -> None:
    began = cycles()
    for i in range(len(committed)):
        if committed[i] != 0:
            redo(i, data)
    totals[0, EXECUTE] += cycles() - began


REDOING = KernelParts((write_redo,), (redo_in_order,))
"""For schemes that redo whole transactions."""
