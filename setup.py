"""The one build step that pyproject.toml cannot describe: the wheel carries the pages of docs/.

`everstream help` shows them. In a checkout it reads them from docs/ instead.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DOCS = Path("docs")
GUIDES = Path("everstream", "guides")


class BuildWithGuides(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for page in pages():
            target = Path(self.build_lib, GUIDES, page.relative_to(DOCS))
            self.mkpath(str(target.parent))
            self.copy_file(str(page), str(target))

    def get_source_files(self) -> list[str]:
        """What the source archive needs."""
        return [*super().get_source_files(), *map(str, pages())]


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


setup(cmdclass={"build_py": BuildWithGuides})
