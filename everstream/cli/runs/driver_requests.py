"""What the monitor asks its driver for while it runs, over a pipe only the two of them hold.

The driver answers with an event. Each ask is carried out in a thread of its own, because a checkpoint
may take long and somebody else may want to kill a worker meanwhile.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any

from everstream.cli.views.messages import Answered, Message
from everstream.errors import EverstreamError, RunFailed, UserError
from everstream.observability.ui.views import Actor

NOBODY = "there is no driver just now: it starts, or has ended. Try again in a moment."
GONE = "the driver ended before it had answered."


@dataclass(frozen=True)
class Ask:
    number: int
    action: str
    wishes: dict[str, Any]

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def read_asks(stream: IO[bytes]) -> Iterator[Ask]:
    for line in stream:
        yield Ask(**json.loads(line))


def answering(stream: IO[bytes], actor: Actor, tell: Callable[[Message], None]) -> None:
    """The driver's side: do what is asked for until nobody asks any more."""
    with stream:
        for ask in read_asks(stream):
            threading.Thread(target=_answer, args=(ask, actor, tell), daemon=True).start()


def _answer(ask: Ask, actor: Actor, tell: Callable[[Message], None]) -> None:
    try:
        answer = Answered(ask.number, actor.act(ask.action, ask.wishes))
    except UserError as error:
        answer = Answered(ask.number, error.message, "usage")
    except EverstreamError as error:
        answer = Answered(ask.number, error.message, "failed")
    except TimeoutError as error:
        answer = Answered(ask.number, str(error), "late")
    with suppress(OSError, ValueError):  # the pipe is closed: the run has ended meanwhile
        tell(answer)


class Asker:
    """The monitor's side: one driver after the other answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: IO[bytes] | None = None
        self._open: dict[int, tuple[Ask, Future[str]]] = {}
        self._number = 0

    def attach(self, stream: IO[bytes]) -> None:
        with self._lock:
            self._stream = stream

    def detach(self) -> None:
        """The driver has gone: who waits for it is told."""
        with self._lock:
            stream, self._stream = self._stream, None
            left, self._open = self._open, {}
        if stream is not None:
            with suppress(OSError):
                stream.close()
        for _, asked in left.values():
            asked.set_exception(RunFailed(GONE))

    def ask(self, action: str, wishes: Mapping[str, Any]) -> Future[str]:
        asked: Future[str] = Future()
        with self._lock:
            self._number += 1
            ask = Ask(self._number, action, dict(wishes))
            try:
                if self._stream is None:
                    raise UserError(NOBODY)
                self._stream.write(ask.to_line())
                self._stream.flush()
            except OSError:
                raise RunFailed(GONE) from None
            self._open[ask.number] = (ask, asked)
        return asked

    def heard(self, answer: Answered) -> Ask | None:
        """Pass an answer on; what was asked for, if it was done."""
        with self._lock:
            ask, asked = self._open.pop(answer.number, (None, None))
        if asked is None:
            return None
        if answer.trouble is None:
            asked.set_result(answer.text)
            return ask
        kinds: dict[str, type[Exception]] = {"usage": UserError, "late": TimeoutError}
        asked.set_exception(kinds.get(answer.trouble, RunFailed)(answer.text))
        return None
