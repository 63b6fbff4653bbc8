"""What sinks share whose output is part files in a folder of the user's: one operator owns it."""

from abc import abstractmethod

from everstream.connectors.parts import PartFolder
from everstream.pipeline.sink import Delivery, Sink


class PartSink(Sink):
    """Writes part files, exactly once, into a folder that it claims for its operator."""

    delivery = Delivery.EXACTLY_ONCE

    @abstractmethod
    def _part_folder(self) -> PartFolder:
        """The folder; a UserError says so if the path cannot be one."""

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        self._part_folder().start_fresh(pipeline, operator, replace, store)

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        self._part_folder().claim(pipeline, operator, store).keep()

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        return self._part_folder().left_behind(pipeline, operator)
