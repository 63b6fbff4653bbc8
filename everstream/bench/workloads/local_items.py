"""Query 3's join, which has no window: whoever comes first waits for the other, for ever."""

from typing import Any

from everstream.bench.workloads.inputs import DUE
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.operator import Context, Keyed, Operator


class LocalItems(Operator):
    """Persons and auctions on one stream keyed by `seller`; emits name, city, state, auction.

    What passes query 3's filters is one record in fifty, so records are taken one by one and
    the state is kept per seller: checkpoints stay small however long the join has run.
    """

    persons = Keyed[tuple[Any, ...]]()
    waiting = Keyed[tuple[tuple[int, int], ...]]()
    """Seller -> the auctions (and their due times) that wait for the person."""

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        timed = DUE in frame.columns
        due = frame[DUE].to_list() if timed else [0] * frame.height
        if "name" in frame.columns:
            rows = frame.select("seller", "name", "city", "state").iter_rows()
            for (seller, *person), person_due in zip(rows, due, strict=True):
                self.persons[seller] = (*person, person_due)
                for auction, auction_due in self.waiting.get(seller, ()):
                    self._emit(person, auction, max(person_due, auction_due), timed, ctx)
                self.waiting.delete(seller)
            return
        for (seller, auction), auction_due in zip(
            frame.select("seller", "auction").iter_rows(), due, strict=True
        ):
            known = self.persons.get(seller)
            if known is None:
                self.waiting[seller] = (*self.waiting.get(seller, ()), (auction, auction_due))
            else:
                self._emit(known[:3], auction, max(known[3], auction_due), timed, ctx)

    def _emit(self, person: Any, auction: int, due_us: int, timed: bool, ctx: Context) -> None:
        name, city, state = person
        row = {"name": name, "city": city, "state": state, "auction": auction}
        ctx.emit(row | {DUE: due_us} if timed else row)
