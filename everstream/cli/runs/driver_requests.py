"""Requests from the supervisor to its running driver, over a private pipe.

The driver answers with an event. Each request runs in its own thread, because a checkpoint may take long
and a request to kill a worker must not wait for it.
"""

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

from everstream.cli.views.messages import Answered, Message
from everstream.errors import EverstreamError, RunFailed, UserError

if TYPE_CHECKING:
    from everstream.observability.ui.views import Actor

NOBODY = "the driver is not running: it is starting, or has ended. Try again in a moment."
GONE = "the driver ended before it answered."


@dataclass(frozen=True)
class Ask:
    number: int
    action: str
    wishes: dict[str, Any]


def answering(stream: IO[bytes], actor: "Actor", tell: Callable[[Message], None]) -> None:
    """The driver's side: carry out requests until the pipe is closed."""
    with stream:
        for line in stream:
            ask = Ask(**json.loads(line))
            threading.Thread(target=_answer, args=(ask, actor, tell), daemon=True).start()


def _answer(ask: Ask, actor: "Actor", tell: Callable[[Message], None]) -> None:
    try:
        answer = Answered(ask.number, actor.act(ask.action, ask.wishes))
    except UserError as error:
        answer = Answered(ask.number, error.message, "usage")
    except EverstreamError as error:
        answer = Answered(ask.number, error.message, "failed")
    except TimeoutError as error:
        answer = Answered(ask.number, str(error), "late")
    with suppress(OSError, ValueError):  # the pipe is closed: the run has ended
        tell(answer)


class Asker:
    """The supervisor's side: sends requests to the current driver."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: IO[bytes] | None = None
        self._open: dict[int, tuple[Ask, Future[str]]] = {}
        self._number = 0

    def attach(self, stream: IO[bytes]) -> None:
        with self._lock:
            self._stream = stream

    def detach(self) -> None:
        """The driver has ended: fail all requests that it has not answered."""
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
                self._stream.write(json.dumps(asdict(ask)).encode() + b"\n")
                self._stream.flush()
            except OSError:
                raise RunFailed(GONE) from None
            self._open[ask.number] = (ask, asked)
        return asked

    def heard(self, answer: Answered) -> Ask | None:
        """Complete the request with this answer; returns the request if it succeeded."""
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
