"""A source that wraps another hides nothing of it."""

from unittest.mock import create_autospec

import pytest

from everstream.connectors.wrapping_reader import WrappingReader
from everstream.pipeline.source import Reader

OF_THE_WRAPPING_ONE = {"offset", "seek", "read", "ready_in_s", "forget"}
"""What depends on how records are given, or on what an offset is."""
PASSED_ON = {
    name
    for name, what in vars(Reader).items()
    if callable(what) and not name.startswith("_") and name not in OF_THE_WRAPPING_ONE
}
TOLD = {"fence": (3,), "keep_time": (float, int), "tune": ({"batch": "10"}, 2), "close": ()}
"""With what; the others are asked."""


@pytest.mark.parametrize("name", sorted(PASSED_ON))
def test_a_reader_passes_on_all_that_it_is_told_or_asked(name: str) -> None:
    class Wrapped(WrappingReader):
        offset = 0

        def seek(self, offset: int) -> None: ...

        def read(self) -> None: ...

    inner = create_autospec(Reader, instance=True)
    arguments = TOLD.get(name, ())
    answer = getattr(Wrapped(inner), name)(*arguments)
    passed_on = getattr(inner, name)
    passed_on.assert_called_once_with(*arguments)
    assert answer is (None if name in TOLD else passed_on.return_value)
