"""Operator state, its snapshots, and the store they live in."""

from everstream.state.blobs import Blobs, FsspecBlobs
from everstream.state.snapshot import Capture, ShardState
from everstream.state.store import CheckpointStore, Lease, Manifest, ObjectRef, Skipped

__all__ = [
    "Blobs",
    "Capture",
    "CheckpointStore",
    "FsspecBlobs",
    "Lease",
    "Manifest",
    "ObjectRef",
    "ShardState",
    "Skipped",
]
