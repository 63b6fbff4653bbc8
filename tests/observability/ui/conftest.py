"""A browser for the tests of the page: one for each module, because its start takes a second."""

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from tests.observability.ui.chromium import MISSING, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    if MISSING:
        pytest.skip(f"{' and '.join(MISSING)} cannot be found: scripts/chromium.sh installs them")
    with chromium() as driver:
        yield driver
