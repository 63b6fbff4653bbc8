"""How many epochs `fast` lets pass before it commits its log."""

from typing import Any

_LOST_WORK_S = 0.02
"""So much work may be lost to a crash for want of a commit."""


def epochs_per_commit(engine: Any, events: int) -> int:
    """Epochs of so many events between commits, from what was measured of the last batch.

    Few dependencies: commit rarely, since recovery gains little from small groups.
    Many dependencies over evenly used keys: commit often, as a large view is slow to
    put back. Skewed keys: in between, because larger groups balance the chains better.
    Never so rarely that a crash loses more work than a commit is worth. Transactions too
    cheap for chains are redone in order, and only that last rule counts.
    """
    skewed = engine.hottest_share > 0.05
    entangled = engine.dependencies_per_transaction > 0.5
    wanted = 4 if not entangled else (2 if skewed else 1)
    epoch_s = events * engine.transaction_cost_s / engine.parallelism
    return max(1, min(wanted, int(_LOST_WORK_S / max(epoch_s, 1e-9))))
