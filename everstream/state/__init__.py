"""Operator state, its snapshots, and the store they live in."""

from everstream.state.blobs import Blobs, FsspecBlobs
from everstream.state.snapshot import CapturedState, ShardState
from everstream.state.store import CheckpointStore, Lease, Manifest, ObjectRef, Skipped

__all__ = [
    "Blobs",
    "CapturedState",
    "CheckpointStore",
    "FsspecBlobs",
    "Lease",
    "Manifest",
    "ObjectRef",
    "ShardState",
    "Skipped",
]
