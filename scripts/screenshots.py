"""Takes the pictures of the page for the documents: of a real run, before, during and after a kill.

Run from the root as `python -m scripts.screenshots` (`make screenshots`). It starts a pipeline on Spark,
opens its page in Chromium, kills a worker from there, and looks on.
"""

import sys
import tempfile
from pathlib import Path

from selenium.webdriver import Chrome

from tests.cli.commands import Command
from tests.observability.ui.chromium import MISSING, as_wide_as, chromium, in_scheme
from tests.observability.ui.reading import Page

IMAGES = Path("docs/images")
WIDTH = 1280
PHONE = 390
KILLS = 5
PROGRAM = """
import polars as pl

import everstream as es


def clicks(start, stop):
    n = pl.int_range(start, stop, dtype=pl.Int64)
    return pl.select(user=n * 7919 % 20_000, page=n * 31 % 400, cents=n * 17 % 9_000)


def visits(count, click):
    return count + 1


pipeline = es.Pipeline("shop")
source = es.Paced(es.FromFunction(clicks, total=50_000_000, batch=500), rate="wave,20s,9000,14000", batch=500)
seen = pipeline.source(source, name="clicks").filter(pl.col("cents") > 500, name="paid")
(
    seen.key_by("user")
    .fold(init=int, update=visits, name="visits", shards=2)
    .sink(es.JsonLines("visits/"), name="store")
)
seen.filter(pl.col("cents") > 8_900, name="large").sink(es.JsonLines("alerts/"), name="alerts")
"""
RUN = ("run", "shop.py", "--ui", "127.0.0.1:0", "--every", "2s", "--master", "local[4]")


def main() -> None:
    if MISSING:
        sys.exit(f"{' and '.join(MISSING)} cannot be found: scripts/chromium.sh installs them.")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shop.py").write_text(PROGRAM)
        run = Command(*RUN, cwd=Path(folder))
        try:
            run.wait_for("its address", lambda: run.says("page: http"))
            with chromium(WIDTH) as browser:
                take(run, browser)
        finally:
            run.process.kill()
            run.wait_until_all_gone()


def take(run: Command, browser: Chrome) -> None:
    (link,) = [line.removeprefix("page: ") for line in run.lines if line.startswith("page: http")]
    as_wide_as(browser, WIDTH, 1060)
    page = Page(browser, link)
    page.shows("running", "#phase")
    # Enough of a past for the charts to have something to show.
    page.wait(lambda: page.asks(POINTS) >= 90)
    picture(browser, "ui-before")
    for _ in range(KILLS):
        if killed_in_time(page, browser):
            break
    else:
        sys.exit("each recovery was over before its picture was taken")
    page.hides("#recovering")
    points = page.asks(POINTS)
    page.wait(lambda: page.asks(POINTS) >= points + 20)
    page.hides("#message")
    picture(browser, "ui-after")
    page.part("failures")
    page.shows("caught up after", "[data-failure]")
    whole(page, "ui-failures", WIDTH)
    in_scheme(browser, "dark")
    page.part("checkpoints")
    page.one(".phases")
    as_wide_as(browser, WIDTH, 760)
    picture(browser, "ui-checkpoints")
    page.part("overview")
    as_wide_as(browser, PHONE, 844)
    page.one(".narrow, .box")
    picture(browser, "ui-phone")


POINTS = "return (await (await fetch('api/view')).json()).series.at.length"


def killed_in_time(page: Page, browser: Chrome) -> bool:
    """Whether the picture shows the recovery."""
    page.hides("#recovering")
    page.click("[data-table='workers'] button.danger")
    page.press("Kill it")
    page.asks("scrollTo(0, 0)")
    page.one("#recovering")
    picture(browser, "ui-during")
    return bool(page.all("#recovering"))


def whole(page: Page, name: str, width: int) -> None:
    """All of the page, however long it is."""
    height = page.asks("return document.querySelector('footer').getBoundingClientRect().bottom")
    as_wide_as(page.browser, width, int(height))
    picture(page.browser, name)


def picture(browser: Chrome, name: str) -> None:
    file = IMAGES / f"{name}.png"
    browser.save_screenshot(str(file))
    print(file)


if __name__ == "__main__":
    main()
