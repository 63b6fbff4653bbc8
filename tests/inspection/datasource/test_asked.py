"""Options are checked: what nobody understands is refused, with what there is."""

from pathlib import Path

import pytest

from everstream.errors import UserError
from everstream.inspection.datasource.asked import Asked


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "name the store"),
        ({"store": "s", "wat": "x"}, 'no option "wat" for a read; there are: epoch, operator'),
        ({"store": "s", "what": "stat"}, "must be one of output, state, checkpoints"),
        ({"store": "s", "what": "output", "epoch": "3"}, '"epoch" for a read of output'),
        ({"store": "s", "what": "state", "epoch": "last"}, "must be the number of an epoch"),
        ({"store": "s", "what": "checkpoints", "verify": "yes"}, "must be true or false"),
    ],
)
def test_wrong_options_are_refused_with_what_there_is(
    options: dict[str, str], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        Asked.of(options)


def test_an_epoch_is_for_state_also_where_it_was_not_said_what_is_read() -> None:
    asked = Asked.of({"store": "s", "epoch": "3"})
    assert asked.of_kind("state").epoch == 3
    with pytest.raises(UserError, match="for reads of state"):
        asked.of_kind("output")


def test_folders_are_named_in_full_for_tasks_that_run_elsewhere() -> None:
    asked = Asked.of({"path": "checkpoints", "STORE_KEY": "store.key"})
    assert asked.store == str(Path("checkpoints").absolute())
    assert asked.store_key == str(Path("store.key").absolute())
    assert Asked.of({"store": "s3://bucket/x"}).store == "s3://bucket/x"
