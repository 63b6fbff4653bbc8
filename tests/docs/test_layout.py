"""The tree of packages in the documents is that of the code."""

import pytest

from scripts.layout import LABORATORY, LIBRARY, PAGE, home, packages, page_with_tree, purpose


def test_the_tree_of_packages_is_current() -> None:
    text = PAGE.read_text()
    assert page_with_tree(text) == text, "run: python -m scripts.layout"


@pytest.mark.parametrize("name", [LIBRARY, LABORATORY])
def test_every_package_says_what_it_is_for(name: str) -> None:
    assert all(purpose(package) for _, package in packages(home(name)))


def test_no_folder_is_a_drawer() -> None:
    """A folder of more than 20 modules hides what belongs together: give it packages."""
    counts = {
        str(package.relative_to(ROOT)): len(list(package.glob("*.py")))
        for name in ("everstream", "everstream_lab")
        for _, package in layout.packages(layout.home(name))
    }
    assert {package: count for package, count in counts.items() if count > 20} == {}
