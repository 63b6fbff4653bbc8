"""The socket where all workers talk to the driver: what they say comes in, what they are told goes out.

Nothing is unpickled here that did not come from a worker of this run: who has no key of the run gets
no connection.
"""

import pickle

import zmq

from everstream.engine.tasks.transport.control_messages import ToDriver, ToWorker
from everstream.engine.tasks.transport.endpoints import SocketFactory


class ControlChannel:
    """The driver's end of every worker's line."""

    def __init__(self, sockets: SocketFactory) -> None:
        self.socket, self.address = sockets.listen(zmq.ROUTER, "driver")
        self.socket.router_handover = True  # a worker that connects again is the same worker

    def next(self) -> tuple[bytes, ToDriver] | None:
        """Who speaks, and what is said; None if nobody does."""
        try:
            identity, *parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return identity, pickle.loads(b"".join(parts))

    def tell(self, identity: bytes, message: ToWorker) -> None:
        self.socket.send_multipart([identity, pickle.dumps(message, protocol=5)])

    def close(self) -> None:
        self.socket.close()
