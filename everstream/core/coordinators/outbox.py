"""Where a coordinator's orders gather until its engine takes them."""

from everstream.core.ids import HostId
from everstream.core.messages import Command
from everstream.core.orders import Note, Order, SendTo


class Outbox:
    """Orders in the order they were given."""

    def __init__(self) -> None:
        self._orders: list[Order] = []

    def add(self, order: Order) -> None:
        self._orders.append(order)

    def send(self, host: HostId, command: Command) -> None:
        self._orders.append(SendTo(host, command))

    def note(self, text: str, warning: bool = False, given_up: int | None = None) -> None:
        self._orders.append(Note(text, warning, given_up))

    def take(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders
