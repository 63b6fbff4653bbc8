"""The engine API of a shard that runs one epoch at a time: it collects all requests in lists.

Nothing is sent or saved while the runner works. The task turns the frames into rows, saves the
checkpoint and answers, all on its own thread and before it ends.
"""

from collections.abc import Callable, Sequence

from everstream.core.fault_points import Point
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, ShardId
from everstream.core.messages import Report
from everstream.errors import InternalError
from everstream.runtime.engine_api import CommitJob, Upload
from everstream.runtime.message_log import Segment
from everstream.state.objects import ObjectRef
from everstream.state.store import CheckpointStore


class TaskEngineApi:
    """The requests of a runner in a task."""

    def __init__(
        self,
        store: CheckpointStore,
        store_url: str,
        clock_s: Callable[[], float],
        wall_s: Callable[[], float],
        reached: Callable[[ShardId, Point], None],
    ) -> None:
        self.store = store
        self.store_url = store_url
        self.scratch = ""
        self.clock_s = clock_s
        self.wall_s = wall_s
        self.reached = reached
        self.frames: list[Frame] = []
        self.uploads: list[Upload] = []
        self.commits: list[CommitJob] = []
        self.told: list[Report] = []

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)

    def grant(self, channel: ChannelId, frames: int, most: int) -> None:
        """Not needed: the senders of an epoch have finished before its receivers start."""

    def tell(self, report: Report) -> None:
        self.told.append(report)

    def upload(self, upload: Upload) -> None:
        self.uploads.append(upload)

    def save_segment(self, segment: Segment) -> None:
        raise InternalError("there are no message logs in an epoch that is one job")

    def commit(self, job: CommitJob) -> None:
        self.commits.append(job)

    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        return [self.store.get(ref) for ref in refs]
