"""A store under test: objects in memory."""

from collections.abc import Sequence

from everstream.state.objects import ObjectRef


class Store:
    """Objects in memory."""

    def __init__(self) -> None:
        self.objects: dict[ObjectRef, bytes] = {}
        self.largest = 0

    def put(self, name: str, data: bytes) -> ObjectRef:
        ref = ObjectRef.of(name, data)
        assert ref.name not in {other.name for other in self.objects}, "each has its own name"
        self.objects[ref] = data
        self.largest = max(self.largest, len(data))
        return ref

    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        return [self.objects[ref] for ref in refs]
