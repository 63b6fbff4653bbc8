"""Does what a tutorial tells its reader to do: saves its files, types its commands, looks at the output.

A block of Python with a title is a file to save; one without is typed into one Python shell. A block of
shell is a list of commands. A block of text right behind either has lines that the reader should see, where
`...` stands for anything. Commands of Everstream and Python programs run in this process, on the Spark that tests
share; nothing else of them is replaced.
"""

import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.cli.runs.driver import run_and_tell
from everstream.cli.runs.supervise import Supervisor

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ANYTHING = r"[^\n]*?"
PLUGIN = "everstream_pytest"
EXIT_CODE = re.compile(r"# exit code (\d+)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    return [Block(*match) for match in BLOCK.findall((ROOT / page).read_text())]


def commands_in(text: str) -> Iterator[tuple[str, int]]:
    """The commands of a block of shell, and the exit code each should have."""
    for line in text.replace("\\\n", " ").splitlines():
        command, _, comment = line.partition("  #")
        if command.strip() and not command.startswith("#"):
            code = EXIT_CODE.search(f"#{comment}")
            yield command.strip(), int(code[1]) if code else 0


@dataclass
class Following:
    """One reader of one page."""

    page: str
    instead: Mapping[str, str] = field(default_factory=dict)
    """What the reader has under another name: an address, a topic."""
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "a_readers_shell"})
    seen: str = ""
    """What the last block has printed."""

    def to_the_end(self) -> "Following":
        """Do everything on the page; fails where it does not go as the page says."""
        for block in blocks_of(self.page):
            self.do(block)
        return self

    def do(self, block: Block) -> None:
        text = block.text
        for written, meant in self.instead.items():
            text = text.replace(written, meant)
        if block.title:
            Path(block.title).write_text(text)
        elif block.language == "python":
            self.seen = self._typed(text)
        elif block.language == "sh":
            self.seen = "".join(self.command(*command) for command in commands_in(text))
        elif block.language == "text":
            self.sees(text)

    def sees(self, text: str) -> None:
        """These lines were printed last, in this order; others may be between them."""
        lines = (r"\s+".join(map(_part, line.split())) for line in text.strip().splitlines())
        pattern = ".*?".join(line.replace(rf"\s+{ANYTHING}", ANYTHING) for line in lines)
        pattern = pattern.replace(rf"{ANYTHING}\s+", ANYTHING)
        assert re.search(pattern, self.seen, re.DOTALL), (
            f"{self.page} shows\n{text}\nbut this was printed:\n{self.seen}"
        )

    def command(self, command: str, code: int = 0) -> str:
        """What a command prints, which must end with this code."""
        arguments = shlex.split(command)
        if arguments[0] == "everstream":
            done = CliRunner().invoke(app, arguments[1:], env={"COLUMNS": "160"})
            assert done.exit_code == code, f"{command}\n{done.output}\n{done.exception!r}"
            return done.output
        if arguments[0] == "python":
            return self._program(arguments[1])
        if arguments[0] == "pytest":
            # Also where the library was installed before it had this plug-in.
            command = shlex.join([sys.executable, "-m", "pytest", "-p", PLUGIN, *arguments[1:]])
        ended = subprocess.run(
            ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert ended.returncode == code, f"{command}\n{ended.stdout}"
        return ended.stdout

    def _typed(self, text: str) -> str:
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, self.page, "exec"), self.names)
        return printed.getvalue()

    def _program(self, file: str) -> str:
        with redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(file, run_name="__main__")
        return printed.getvalue()


def _part(word: str) -> str:
    return ANYTHING if word == "..." else re.escape(word)


@pytest.fixture
def drivers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`everstream run` without a driver process, and so without a Spark, of its own."""

    def run_driver(self: Supervisor) -> None:
        sys.stdout.flush()
        run_and_tell(self._command, self._hear)

    monkeypatch.setattr(Supervisor, "_run_driver", run_driver)
