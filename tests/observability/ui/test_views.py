"""The views that were made for the tests are such as a server gives: else the page is tested for nothing."""

import pytest
from jsonschema import Draft202012Validator

from everstream.observability.history.schema import VIEW
from tests.observability.ui.views import VIEWS


@pytest.mark.parametrize("name", VIEWS)
def test_a_made_view_is_as_the_schema_says(name: str) -> None:
    wrong = Draft202012Validator(VIEW).iter_errors(VIEWS[name]())
    assert [f"{error.json_path}: {error.message[:200]}" for error in wrong] == []
