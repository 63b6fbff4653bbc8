"""Communication-induced checkpoints: data on a frame can force a checkpoint before its delivery.

As uncoordinated, plus forced checkpoints that keep every checkpoint useful: none can ever lie on
a zigzag path back to itself, so a failure costs about one interval even on cyclic graphs. Such a
path needs a cycle, so only frames between shards of one strongly connected component carry
anything, and a shard on no cycle is never forced. The rules keep their papers' names.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from everstream.core.frames import Frame
from everstream.core.ids import ChannelId
from everstream.core.protocols.base import Ask, ShardPosition
from everstream.core.protocols.uncoordinated import UncoordinatedProtocol

_FAR = np.int64(1) << 62


class BCS(UncoordinatedProtocol):
    """One clock: a frame from a later one forces a checkpoint."""

    def __init__(
        self,
        place: ShardPosition,
        every_s: float | None,
        jitter: float,
        every_records: int | None = None,
    ) -> None:
        super().__init__(place, every_s, jitter, every_records)
        self.lc = 0

    def checkpoint_first(self, frame: Frame) -> Sequence[Ask]:
        m_lc = int.from_bytes(frame.piggyback, "little") if frame.piggyback else 0
        if m_lc <= self.lc:
            return ()
        self.lc = m_lc
        return [self.take(forced=True)]

    def on_checkpoint(self, forced: bool) -> None:
        if not forced:
            self.lc += 1

    def piggyback(self, channel: ChannelId) -> bytes:
        return self.lc.to_bytes(8, "little") if channel.receiver in self.place.cycle else b""

    def variables(self) -> dict[str, Any]:
        return {**super().variables(), "lc": self.lc}

    def restore(self, variables: dict[str, Any], ended: Sequence[ChannelId]) -> None:
        super().restore(variables, ended)
        self.lc = variables.get("lc", 0)


class HMNR(UncoordinatedProtocol):
    """Clocks and checkpoint counts of the whole component, and whom this shard has sent to.

    The empty start is each shard's first checkpoint. Without it, a shard that has taken none could
    not tell its count from that of a shard that has never heard of it, and would be forced for it.
    """

    def __init__(
        self,
        place: ShardPosition,
        every_s: float | None,
        jitter: float,
        every_records: int | None = None,
    ) -> None:
        super().__init__(place, every_s, jitter, every_records)
        n = len(place.cycle)
        self.index = {shard: k for k, shard in enumerate(place.cycle)}
        self.i = self.index.get(place.id, 0)
        self.clock = np.zeros(n, np.int64)
        self.ckpt = np.zeros(n, np.int64)
        self.taken = np.zeros(n, np.int64)
        self.sent_to = np.zeros(n, np.bool_)
        self.min_to = np.full(n, _FAR)
        self.on_checkpoint(forced=False)

    def piggyback(self, channel: ChannelId) -> bytes:
        k = self.index.get(channel.receiver)
        if k is None:
            return b""
        self.sent_to[k] = True
        self.min_to[k] = min(self.min_to[k], self.clock[self.i])
        return np.concatenate([self.clock, self.ckpt, self.taken]).tobytes()

    def checkpoint_first(self, frame: Frame) -> Sequence[Ask]:
        if not frame.piggyback:
            return ()
        m_clock, m_ckpt, m_taken = self._parse(frame)
        i, j = self.i, self.index[frame.channel.sender]
        behind = np.maximum(self.clock, m_clock) < m_clock[j]
        zigzag = bool((self.sent_to & (self.min_to < m_clock[j]) & behind).any())
        returned = bool(m_taken[i]) and m_ckpt[i] == self.ckpt[i]
        return [self.take(forced=True)] if zigzag or returned else ()

    def on_delivered(self, frame: Frame) -> None:
        if not frame.piggyback:
            return
        m_clock, m_ckpt, m_taken = self._parse(frame)
        j = self.index[frame.channel.sender]
        np.maximum(self.clock, m_clock, out=self.clock)
        self.clock[self.i] = max(self.clock[self.i], m_clock[j])
        ours_ckpt, ours_taken = self.ckpt[self.i], self.taken[self.i]
        later, same = m_ckpt > self.ckpt, m_ckpt == self.ckpt
        self.taken = np.where(later, m_taken, np.where(same, self.taken | m_taken, self.taken))
        self.ckpt = np.maximum(self.ckpt, m_ckpt)
        self.ckpt[self.i], self.taken[self.i] = ours_ckpt, ours_taken

    def on_checkpoint(self, forced: bool) -> None:
        if not self.place.cycle:
            return
        self.sent_to[:] = False
        self.min_to[:] = _FAR
        self.taken[:] = 1
        self.taken[self.i] = 0
        self.clock[self.i] += 1
        self.ckpt[self.i] += 1

    def variables(self) -> dict[str, Any]:
        """The vectors as they are right after the checkpoint; `sent_to` is empty there."""
        vectors = {name: getattr(self, name).tolist() for name in ("clock", "ckpt", "taken")}
        return {**super().variables(), **vectors}

    def restore(self, variables: dict[str, Any], ended: Sequence[ChannelId]) -> None:
        super().restore(variables, ended)
        n = len(self.place.cycle)
        for name in ("clock", "ckpt", "taken"):
            setattr(self, name, np.array(variables.get(name, [0] * n), np.int64))
        self.sent_to = np.zeros(n, np.bool_)
        self.min_to = np.full(n, _FAR)
        if "ckpt" not in variables:
            self.on_checkpoint(forced=False)

    def _parse(self, frame: Frame) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.frombuffer(frame.piggyback, np.int64).reshape(3, -1)
