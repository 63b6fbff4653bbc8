"""The process of a worker: what it needs in any place, and how it waits for one.

It does everything slow that is the same for all places before it says hello: it is admitted, loads
the plan with the user's modules, and listens. Taking a place then costs almost nothing; until it
gets one, the process waits as a spare.
"""

import ctypes
import os
import pickle
import socket
import time
from typing import TYPE_CHECKING, Any

import cloudpickle
import polars as pl
import pyarrow as pa
import zmq

from everstream.core.ids import TaskNumber, WorkerId
from everstream.core.messages import Shutdown
from everstream.core.plan import Plan
from everstream.engine.continuous.liveness.life_sign import LifeSign
from everstream.engine.continuous.transport.control_messages import (
    Hello,
    NewPlan,
    Noticed,
    TakePlace,
    ToDriver,
    ToWorker,
    WorkerBroke,
)
from everstream.engine.continuous.transport.endpoints import (
    SocketFactory,
    address_towards,
    in_parts,
)
from everstream.engine.continuous.transport.key_exchange import let_in
from everstream.engine.continuous.transport.links import Watch
from everstream.errors import EnvironmentFault, UserError
from everstream.events import Note
from everstream.runtime.payload import warm_up
from everstream.state.local_recovery import LocalCopies, store_with
from everstream.state.signing import StoreUrl

if TYPE_CHECKING:
    from everstream.engine.continuous.worker.worker import WorkerTask


LOOK_EVERY_S = 0.1


class WorkerProcess:
    """One attempt of one task, before and while it has a place."""

    def __init__(self, task: "WorkerTask", number: TaskNumber, attempt: int, task_id: int) -> None:
        self.number = number
        self.attempt = attempt
        interface = address_towards(task.driver.host) if task.over_tcp else None
        admission = let_in(
            task.ticket,
            number,
            task_id,
            always_tcp=task.always_tcp,
            patience_s=task.driver_timeout_s,
        )
        self.near = None if task.near is None else LocalCopies(task.near)
        self.store = store_with(self.near, task.store_url, admission.store_key)
        self.store_url = StoreUrl(task.store_url, admission.store_key)
        self.sockets = SocketFactory(
            admission.keys, interface, always_tcp=task.always_tcp, silence_s=task.driver_timeout_s
        )
        identity = f"{number}/{attempt}".encode()
        self.to_driver = Watch(self.sockets, zmq.DEALER, task.driver, identity)
        self.control = self.to_driver.socket
        self.plan: Plan = self._load_plan(task.pickled_plan)
        self.plan_number = 0
        self.inbox, self.address = self.sockets.listen(zmq.PULL, "inbox")
        self.life = LifeSign(
            self.sockets,
            task.driver,
            task.driver_timeout_s,
            number,
            attempt,
            measures=task.measures,
        )
        self._task_id = task_id
        self._say_hello()
        warm_up()  # while the driver and the other workers get ready

    def _say_hello(self) -> None:
        machine, plan, pid = self.sockets.machine, self.plan_number, os.getpid()
        ids = (self.number, self.attempt, self._task_id)
        self.say(Hello(*ids, pid, machine, self.address, plan))

    def replan(self, new: NewPlan) -> None:
        """Start again with another plan. Messages to the old address are lost."""
        if new.number <= self.plan_number:
            return
        self.plan, self.plan_number = self._load_plan(new.pickled), new.number
        self.inbox.close()
        self.inbox, self.address = self.sockets.listen(zmq.PULL, f"inbox-{new.number}")
        self._say_hello()

    def wait_for_place(self) -> WorkerId | None:
        """The place it gets; None if the run ends before it was needed."""
        while True:
            if self.control.poll(int(LOOK_EVERY_S * 1000)):
                match self.hear():
                    case TakePlace(worker=worker):
                        return worker
                    case NewPlan() as new:
                        self.replan(new)
                    case Shutdown():
                        return None
            self.check_link()

    def hear(self) -> ToWorker:
        """The next message of the driver; zmq.Again if there is none."""
        message: ToWorker = pickle.loads(self.control.recv(zmq.DONTWAIT))
        self.life.heard_s = time.monotonic()
        return message

    def say(self, message: ToDriver) -> None:
        self.control.send_multipart(in_parts(pickle.dumps(message, protocol=5)))

    def check_link(self) -> None:
        now_s = time.monotonic()
        self.to_driver.look(now_s)
        if self.to_driver.is_cut(now_s):
            raise EnvironmentFault(
                f"the connection from the process of task {self.number} to the driver was cut: "
                "orders may be lost"
            )

    def note_damage(self, worker: WorkerId) -> None:
        """Reads from a copy are reported under this name."""
        self.store.on_damage = lambda text: self.say(
            Noticed(Note("store", f"worker {worker}: {text}", True))
        )

    def _load_plan(self, pickled: bytes) -> Plan:
        """The pipeline; modules it needs may be missing on this machine."""
        try:
            plan: Plan = cloudpickle.loads(pickled)
        except Exception as error:  # unpickling runs code of the user's modules
            problem = UserError(
                f"the pipeline cannot be loaded on {socket.gethostname()}: {error!r}. Modules it "
                "uses must be installed there, or be sent along with Spark's --py-files."
            )
            self.say(WorkerBroke(self.number, self.attempt, problem))
            self.to_driver.close(linger_ms=1000)
            self.sockets.close()
            raise problem from error
        return plan

    def forget_copies(self) -> None:
        """The run is over: its snapshots on this machine are no longer needed."""
        if self.near is not None:
            self.near.remove()

    def close(self) -> None:
        self.life.stop()
        self.to_driver.close(linger_ms=1000)
        self.inbox.close()
        self.sockets.close()


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 << 20
"""How much freed memory is kept at the end of the heap."""
LARGEST_BYTES = 16 << 20
"""Larger buffers are returned at once."""
PR_SET_TIMERSLACK = 29
SLACK_NS = 1


def be_quick() -> None:
    """For this process, and for sleeps of this thread. Has no effect where the system lacks these."""
    pa.set_cpu_count(pl.thread_pool_size())
    try:
        library: Any = ctypes.CDLL(None)
    except OSError:
        return
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    if hasattr(library, "prctl"):
        library.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS))
