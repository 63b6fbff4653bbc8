"""The page of a real run, in a real Chromium, through the death of a worker and of the driver."""

from itertools import count
from pathlib import Path

from selenium.webdriver import Chrome

from tests.cli.commands import Command
from tests.gated import TOTAL, expected, open_gate, prepare
from tests.observability.ui.chromium import as_wide_as
from tests.observability.ui.reading import Page
from tests.output import rows_in

RUN = ("run", "steady.py", "--ui", "127.0.0.1:0", "--every", "1s", "--master", "local[2]")


def test_the_page_of_a_run_shows_a_kill_and_lives_through_the_death_of_the_driver(
    tmp_path: Path, browser: Chrome
) -> None:
    as_wide_as(browser, 1280)
    prepare(tmp_path, 100)
    run = Command(*RUN, cwd=tmp_path)
    try:
        watch(run, tmp_path, browser)
    finally:
        run.process.kill()
    run.wait_until_all_gone()


def watch(run: Command, folder: Path, browser: Chrome) -> None:
    run.wait_for("its address", lambda: run.says("page: http"))
    (link,) = [line.removeprefix("page: ") for line in run.lines if line.startswith("page: http")]
    page = Page(browser, link)

    # It shows the graph, and rates of what flows.
    page.shows("running", "#phase")
    boxes = [box.get_attribute("data-chain") for box in page.all(".box")]
    assert sorted(boxes) == ["numbers", "sum"]
    gate = count(200, 100)

    def something_flows() -> bool:
        open_gate(folder, min(next(gate), TOTAL // 3))
        return page.text(".on-edge b")[0] in "123456789"

    page.wait(something_flows)
    page.wait(lambda: page.text(".tile:nth-child(4)").find("epoch") > 0)

    # A worker is killed from the page, and that is seen.
    page.click("[data-table='workers'] button.danger")
    page.press("Kill it")
    page.shows("is being killed", "#message")
    page.part("failures")
    page.shows("killed", "[data-failure]")
    page.shows("caught up after", "[data-failure] .pill")

    # Its state can be looked up: all that was in the newest checkpoint.
    page.part("state")
    choose = "const s = document.querySelector('select'); s.value = 'sum'; s.dispatchEvent(new Event('change'))"
    page.asks(choose)
    page.press("Look")
    page.wait(lambda: len(page.all(".found tbody tr")) == 10)
    page.part("failures")

    # The driver is killed: the page stays, says so, and shows how it comes back.
    run.driver().kill()
    page.one("#driver-lost")
    page.hides("#driver-lost")
    page.wait(lambda: len(page.all("[data-failure]")) >= 2)
    page.shows("running", "#phase")
    page.shows("caught up after", "[data-failure] .pill")
    assert page.complaints() == []
    origin = link.partition("#")[0]
    assert [url for url in page.requests() if not url.startswith(origin)] == []

    open_gate(folder, TOTAL)
    assert run.end() == 0, run.output
    assert rows_in(folder / "out") == expected()
