"""The socket where all hosts talk to the driver: what they say comes in, what they are told goes out.

Nothing is unpickled here that did not come from a host of this run: who has no key of the run gets
no connection.
"""

import pickle

import zmq

from everstream.spark.endpoints import Doors
from everstream.spark.talk import ToDriver, ToHost


class Switchboard:
    """The driver's end of every host's line."""

    def __init__(self, doors: Doors) -> None:
        self.socket, self.address = doors.listen(zmq.ROUTER, "driver")
        self.socket.router_handover = True  # a host that connects again is the same host

    def next(self) -> tuple[bytes, ToDriver] | None:
        """Who speaks, and what is said; None if nobody does."""
        try:
            identity, *parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return identity, pickle.loads(b"".join(parts))

    def tell(self, identity: bytes, message: ToHost) -> None:
        self.socket.send_multipart([identity, pickle.dumps(message, protocol=5)])

    def close(self) -> None:
        self.socket.close()
