"""The tree of packages in the documents is that of the code."""

import pytest

from scripts.layout import LABORATORY, LIBRARY, PAGE, home, packages, page_with_tree, purpose


def test_the_tree_of_packages_is_current() -> None:
    text = PAGE.read_text()
    assert page_with_tree(text) == text, "run: python -m scripts.layout"


@pytest.mark.parametrize("name", [LIBRARY, LABORATORY])
def test_every_package_says_what_it_is_for(name: str) -> None:
    assert all(purpose(package) for _, package in packages(home(name)))


@pytest.mark.parametrize("name", [LIBRARY, LABORATORY])
def test_no_folder_is_a_drawer(name: str) -> None:
    counts = {str(package): len(list(package.glob("*.py"))) for _, package in packages(home(name))}
    assert {package: count for package, count in counts.items() if count > 20} == {}
