"""What all readers of files share: what was left out, and waiting for files that come later."""

from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.source import Reader

LOOK_FOR_FILES_EVERY_S = 1.0


class FileReader(Reader):
    """Keeps what was rejected until it is taken, and knows when there is nothing to read yet."""

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._rejected: list[Rejected] = []
        self._idle = False
        """All files that are there have been read, and others may come."""

    def ready_in_s(self) -> float:
        return LOOK_FOR_FILES_EVERY_S if self._idle else 0.0

    def take_rejected(self) -> list[Rejected]:
        rejected, self._rejected = self._rejected, []
        return rejected
