"""Outlets: where a shard's output waits for credit and leaves along one edge of the graph."""

from everstream.runtime.outlets.base import CREDIT, Outlet, Wiring
from everstream.runtime.outlets.direct import DirectOutlet
from everstream.runtime.outlets.making import make_outlet, make_outlets
from everstream.runtime.outlets.on_demand import CREDIT_ON_DEMAND, DemandOutlet
from everstream.runtime.outlets.waiting import Item

__all__ = [
    "CREDIT",
    "CREDIT_ON_DEMAND",
    "DemandOutlet",
    "DirectOutlet",
    "Item",
    "Outlet",
    "Wiring",
    "make_outlet",
    "make_outlets",
]
