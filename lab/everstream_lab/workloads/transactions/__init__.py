"""The three workloads transactional streams are compared on."""

from collections.abc import Callable

from everstream_lab.workloads.transactions.grep_sum import grep_and_sum
from everstream_lab.workloads.transactions.ledger import streaming_ledger
from everstream_lab.workloads.transactions.shape import Shape, Workload
from everstream_lab.workloads.transactions.toll import toll_processing

WORKLOADS: dict[str, Callable[[Shape | None], Workload]] = {
    "ledger": streaming_ledger,
    "grep-sum": grep_and_sum,
    "toll": toll_processing,
}

__all__ = ["WORKLOADS", "Shape", "Workload", "grep_and_sum", "streaming_ledger", "toll_processing"]
