"""A permit is proof that a checkpoint is stable: nobody but the core can come by one."""

import copy
import pickle
from dataclasses import replace

import pytest

from everstream.connectors import Permit
from everstream.core.permits import permit
from tests.core.imported import ROOT, imports

MAKERS = {
    "core/shard.py",
    "engine/microbatch/output.py",  # the driver commits, once the manifest is in the store
    "runtime/sent_frames.py",  # reads its own output again, with nothing to commit
    "testing/sinks.py",  # play the engine for a sink under test
    "testing/sink_rescaling.py",
    "testing/sink_world.py",
}


def test_a_permit_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError, match="cannot be made by hand"):
        Permit(3)
    with pytest.raises(TypeError, match="cannot be made by hand"):
        Permit(checkpoint=3)


def test_a_permit_for_one_checkpoint_does_not_become_one_for_another() -> None:
    given = permit(3)
    with pytest.raises(TypeError):
        replace(given, checkpoint=4)
    with pytest.raises(AttributeError):
        given.checkpoint = 4  # type: ignore[misc]
    assert given == permit(3) != permit(4)


def test_a_permit_stays_in_its_process() -> None:
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="only in the process it was given to"):
            send(permit(3))


def test_only_what_hears_of_stable_checkpoints_makes_permits() -> None:
    makers = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if any(name == "everstream.core.permits" for name, _ in imports(path))
    }
    assert makers == MAKERS
