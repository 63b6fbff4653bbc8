"""The applications as pipelines, for commands that take `module:NAME`.

`everstream_lab.pipelines:eye` is the application `eye` on its smallest input, class `test`;
`everstream_lab.pipelines:eye_small` names the class. An input that does not exist yet is made.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import everstream as es
from everstream_lab.apps.application import CLASSES
from everstream_lab.apps.catalogue import find
from everstream_lab.apps.inputs import input_folder


def __getattr__(name: str) -> es.Pipeline:
    if name.startswith("_"):
        raise AttributeError(name)
    application_name, _, size = name.partition("_")
    application = find(application_name)
    size = size or CLASSES[0]
    with _progress(f"making the input of {application.name}, class {size}") as tell:
        folder = input_folder(application, size, tell)
    output = Path(f"{application.name}-{size}").absolute()
    return application.pipeline(folder, output, batch=application.batch)


@contextmanager
def _progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """Shows progress on standard error; nothing until the first update."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)
