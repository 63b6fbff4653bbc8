"""The smallest input of each application, and what the sequential program makes of it, made once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everstream_lab.apps.application import Application
from everstream_lab.apps.catalogue import find
from everstream_lab.apps.inputs import input_folder
from tests.spark import MASTER as MASTER

from .speech_tools import install_flite

Folder = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def _inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Inputs of tests are no business of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "EVERSTREAM_INPUTS", str(tmp_path_factory.mktemp("inputs")))
        yield


def application(name: str) -> Application:
    if name == "sentiment":
        install_flite()
    return find(name)


@pytest.fixture(scope="session")
def folder() -> Folder:
    """The folder of the smallest input of an application."""
    return lambda name: input_folder(application(name), "test")


@pytest.fixture(scope="session")
def truth(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The result of the sequential program for that input."""
    results = tmp_path_factory.mktemp("sequential")

    def of(name: str) -> Path:
        app = application(name)
        (results / name).mkdir(exist_ok=True)
        output = results / name / app.result
        if not output.exists():
            app.sequential(folder(name), output)
        return output

    return of
