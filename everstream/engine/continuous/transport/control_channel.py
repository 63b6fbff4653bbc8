"""The control channel: the driver's socket for messages from and to all workers.

It unpickles only messages from workers of this run: without a key of the run there is no
connection.
"""

import pickle

import zmq

from everstream.engine.continuous.transport.control_messages import ToDriver, ToWorker
from everstream.engine.continuous.transport.endpoints import SocketFactory


class ControlChannel:
    """The driver's end of the connections to all workers."""

    def __init__(self, sockets: SocketFactory) -> None:
        self.socket, self.address = sockets.listen(zmq.ROUTER, "driver")
        self.socket.router_handover = True  # a worker that reconnects is the same worker

    def next(self) -> tuple[bytes, ToDriver] | None:
        """The sender and its message; None if there is no message."""
        try:
            identity, *parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return identity, pickle.loads(b"".join(parts))

    def tell(self, identity: bytes, message: ToWorker) -> None:
        self.socket.send_multipart([identity, pickle.dumps(message, protocol=5)])

    def close(self) -> None:
        self.socket.close()
