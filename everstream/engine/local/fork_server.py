"""The process that forks the workers of local runs, with our imports already done.

A worker that replaces a killed one starts with everything loaded: it takes the time of a fork. This
process only imports the modules and does not use them, because thread pools and ZeroMQ contexts do
not survive a fork; that is also why workers are not forked from the user's own process. The compiler
is an exception: Numba takes half a second until its first function runs, in every new process, and
what it sets up in that time survives a fork.

It ends, with all its workers, when the process that started it has ended.
"""

import gc
import os
import pickle
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from typing import NoReturn

import numpy as np

from everstream.engine.local.messages import (
    COMPLETED,
    Ended,
    Fork,
    FromServer,
    KillTask,
    Preload,
    RunBegins,
    RunEnds,
    ToServer,
)

PRELOADED = ("everstream.engine.continuous.worker.worker", "numpy.random")
"""What every worker needs."""
COMPILER = "numba"
LAST_WORDS_BYTES = 16_384


@dataclass
class _Child:
    """A forked worker that has not been reaped."""

    task: int
    run: str
    last_words: int
    """Reading end of the pipe on which it says why it ends."""


@dataclass
class _Run:
    """What all workers of a run get."""

    begins: RunBegins
    output: list[int]
    """Its standard output and standard error."""


@dataclass
class ForkServer:
    """Forks on request, and reports how each worker ended."""

    channel: socket.socket
    runs: dict[str, _Run] = field(default_factory=dict)
    children: dict[int, _Child] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection: Connection[FromServer, ToServer] = Connection(
            os.dup(self.channel.fileno())
        )
        self.wake, self._waker = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._waker, False)

    def serve(self) -> None:
        """Until the other end is closed."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # a collection in a worker does not copy what it shares with this process
        selector = selectors.DefaultSelector()
        selector.register(self.channel, selectors.EVENT_READ)
        selector.register(self.wake, selectors.EVENT_READ)
        try:
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self.channel:
                        self._obey(self.connection.recv())
                    else:
                        os.read(self.wake, 4096)
                        self._reap()
        except (EOFError, ConnectionError):
            for pid in self.children:
                os.kill(pid, signal.SIGKILL)

    def _obey(self, message: ToServer) -> None:
        match message:
            case Preload(modules=modules):
                preload(modules)
                gc.collect()
                gc.freeze()
            case RunBegins():
                _, output, _, _ = socket.recv_fds(self.channel, 1, 2)
                self.runs[message.run] = _Run(message, output)
            case Fork():
                self._fork(message)
            case KillTask(task=task):
                for pid, child in self.children.items():
                    if child.task == task:
                        os.kill(pid, signal.SIGKILL)
            case RunEnds(run=run):
                for descriptor in self.runs.pop(run).output:
                    os.close(descriptor)

    def _fork(self, fork: Fork) -> None:
        last_words, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become_worker(fork, write_end)
        os.close(write_end)
        os.set_blocking(last_words, False)
        self.children[pid] = _Child(fork.task, fork.run, last_words)

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.pop(pid)
            try:
                words = os.read(child.last_words, LAST_WORDS_BYTES).decode(errors="replace")
            except BlockingIOError:  # a process that it started still has the pipe
                words = ""
            os.close(child.last_words)
            code = os.waitstatus_to_exitcode(status)
            self.connection.send(Ended(child.run, child.task, code, words))

    def _become_worker(self, fork: Fork, last_words: int) -> NoReturn:
        """In the forked process; never returns to the loop of the server."""
        words, code = COMPLETED, 0
        try:
            self._let_go()
            _work(self.runs[fork.run], fork)
        except BaseException as error:
            words, code = "".join(traceback.format_exception_only(error)).strip(), 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(last_words, words.encode(errors="replace")[:LAST_WORDS_BYTES])
            os._exit(code)

    def _let_go(self) -> None:
        """Of everything that belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.connection.close()
        self.channel.close()
        for descriptor in (
            self.wake,
            self._waker,
            *(one.last_words for one in self.children.values()),
        ):
            os.close(descriptor)


def _work(run: _Run, fork: Fork) -> None:
    for descriptor, target in zip(run.output, (1, 2), strict=True):
        os.dup2(descriptor, target)
    begins = run.begins
    os.chdir(begins.folder)
    os.environ.clear()
    os.environ.update(begins.environment)
    sys.path[:] = begins.python_path
    np.random.seed()  # or all workers would draw the same numbers
    pickle.loads(begins.pickled_task).work(fork.number, fork.attempt, fork.task)


def preload(modules: Iterable[str] = PRELOADED) -> None:
    for module in modules:
        with suppress(ImportError):  # a worker that needs it reports it
            loaded = import_module(module)
            if module == COMPILER:
                # Compile something, so that no worker is the first to do it.
                loaded.njit("int64(int64)")(_same)


def _same(number: int) -> int:
    return number


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    preload()
    ForkServer(channel).serve()


if __name__ == "__main__":
    main()
