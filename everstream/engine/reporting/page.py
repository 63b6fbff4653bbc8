"""The page of a run that this process drives: `pipeline.run(ui=True)`, `pipeline.start(ui="HOST:PORT")`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from everstream.engine.handle import RunHandle


@contextmanager
def served(handle: RunHandle, ui: bool | str, store: str, key_file: str | None) -> Iterator[None]:
    """Serve it while the run goes on, if somebody wants it."""
    if ui is False:
        yield
        return
    from everstream.observability.ui.actions import Actions
    from everstream.observability.ui.serving import Serving
    from everstream.observability.ui.views import Shown

    shown = Shown(handle.live, Actions(handle), store)
    shown.store_key = key_file
    with Serving(shown, None if ui is True else ui) as serving:
        handle.page = serving.link
        # Not a note: those are kept, and the link has the token in it.
        print(f"everstream: '{handle.name}': page: {serving.link}", file=sys.stderr)
        if serving.warning is not None:
            print(f"everstream: '{handle.name}': {serving.warning}", file=sys.stderr)
        try:
            yield
        finally:
            handle.page = None
