"""What the page shows, in a real Chromium, of views that were made for it."""

import re
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from everstream.observability.ui.auth import TOKEN_FILE
from tests.observability.ui.chromium import as_wide_as, in_scheme
from tests.observability.ui.made import Asked, MadeLive, serving
from tests.observability.ui.reading import PATIENCE_S, Page
from tests.observability.ui.views import NOW, VIEWS, busy, failing, failure, many
from tests.sampling import sampled

DASH = "\N{EN DASH}"
PARTS = ("overview", "checkpoints", "failures", "state", "letters", "setup")


@pytest.fixture(autouse=True)
def a_usual_window(browser: Chrome) -> None:
    as_wide_as(browser, 1280)
    in_scheme(browser, "light")


@pytest.mark.parametrize("name", sampled(VIEWS, ["starting", "busy", "failing", "ended"]))
def test_every_part_is_drawn_without_a_complaint_fits_a_phone_and_asks_nobody_else(
    name: str, browser: Chrome
) -> None:
    with serving(MadeLive(VIEWS[name]())) as server:
        page = Page(browser, server.link)
        for part in PARTS:
            page.part(part)
            assert page.all("main > *"), part
        as_wide_as(browser, 390)
        for part in PARTS:
            page.part(part)
            width = page.asks("return document.documentElement.scrollWidth")
            assert width == 390, f"{part}: a phone must not have to scroll sideways"
        assert page.complaints() == []
        asked = page.requests()
        assert f"{server.url}api/stream" in asked
        assert [url for url in asked if not url.startswith(server.url)] == []


def test_the_graph_has_a_box_for_each_chain_and_a_rate_on_each_edge(browser: Chrome) -> None:
    with serving(MadeLive(busy())) as server:
        page = Page(browser, server.link)
        boxes = {box.get_attribute("data-chain") for box in page.all(".box")}
        assert boxes == {"lines", "count", "top words", "archive <b>&", "alerts"}
        fused = page.all("[data-chain='lines'] .operator")
        assert [row.get_attribute("data-operator") for row in fused] == ["lines", "split"]
        assert page.text("[data-edge='split → count']").split() == ["82.3", "k/s", "by", "key"]
        assert "back-pressured" in page.text("[data-chain='lines']")
        assert "busy 97 %" in page.text("[data-chain='count']")
        # Fused operators have no edge between them, and no box lies on another.
        assert not page.all("[data-edge='lines → split']")
        assert page.asks(OVERLAPS) == []


OVERLAPS = """
const boxes = [...document.querySelectorAll(".box")].map((box) => [box.dataset.chain, box.getBoundingClientRect()]);
return boxes.flatMap(([one, a], index) => boxes.slice(index + 1)
  .filter(([, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
  .map(([other]) => [one, other]));
"""


def test_names_are_text_and_never_markup(browser: Chrome) -> None:
    with serving(MadeLive(busy())) as server:
        page = Page(browser, server.link)
        name = page.one("[data-chain='archive <b>&'] .name")
        assert page.asks("return arguments[0].innerHTML", name) == "archive &lt;b&gt;&amp;"


def test_an_operator_that_is_clicked_shows_its_shards(browser: Chrome) -> None:
    with serving(MadeLive(many())) as server:
        page = Page(browser, server.link)
        page.click("[data-operator='sessions']")
        page.one("[data-table='shards']")
        first = page.text("[data-table='shards'] tbody tr")
        assert first.startswith("sessions:76"), "the busiest one comes first"
        assert len(page.all("#operator .strip .cell")) == 96
        page.press("Show all 96 rows")
        page.wait(lambda: len(page.all("[data-table='shards'] tbody tr")) == 96)


def test_what_is_not_known_is_a_dash_and_not_a_nought(browser: Chrome) -> None:
    with serving(MadeLive(VIEWS["starting"]())) as server:
        page = Page(browser, server.link)
        assert "not measured yet" in page.text("[data-chain='lines']")
        assert page.text("[data-operator='copy'] .rate") == DASH
        assert page.text(".tile .value") == DASH
        page.shows("Waiting for Spark to start the workers.")


def test_an_idle_pipeline_says_what_it_waits_for(browser: Chrome) -> None:
    with serving(MadeLive(VIEWS["idle"]())) as server:
        page = Page(browser, server.link)
        page.shows("Idle: all shards are running and wait for records from orders.")


def test_news_are_shown_and_what_was_opened_stays_open(browser: Chrome) -> None:
    live = MadeLive(busy())
    with serving(live) as server:
        page = Page(browser, server.link)
        page.click("[data-operator='count']")
        button = page.one("[data-operator='count']")
        live.becomes(failing())
        page.shows("Recovering: worker 2 was killed (SIGKILL).", "#recovering")
        page.shows("lost", "[data-chain='count'] .pill")
        assert page.all("[data-table='shards']")
        focused = page.asks("return document.activeElement === arguments[0]", button)
        assert focused, "the element is still the same one, and has the focus"
        live.becomes(busy())
        page.hides("#recovering")


def test_a_slow_checkpoint_names_the_shard_and_its_phase(browser: Chrome) -> None:
    with serving(MadeLive(failing())) as server:
        page = Page(browser, server.link)
        page.part("checkpoints")
        page.shows("count:0 took longest", ".phases")
        page.shows("uploading it", ".phases .hint")
        page.shows("count:0 was lost while it was being taken", "li.failed")


def test_a_failure_is_a_timeline_from_the_kill_to_caught_up(browser: Chrome) -> None:
    with serving(MadeLive(failing())) as server:
        page = Page(browser, server.link)
        page.part("failures")
        page.one("[data-failure]")
        newest, first, _ = page.all("[data-failure]")
        assert "caught up …" in newest.text
        steps = first.find_element("css selector", ".steps").text
        found = re.findall(
            r"(killed|detected|restarted|restored|replayed|caught up) ([\d.]+ m?s)", steps
        )
        assert [step for step, _ in found] == [
            "killed", "detected", "restarted", "restored", "replayed", "caught up"
        ]  # fmt: skip
        assert "48,211" in first.text and "and 5 more" in first.text
        widths = page.asks(
            "return [...arguments[0].children].map((part) => part.getBoundingClientRect().width)",
            first.find_element("css selector", ".timeline"),
        )
        assert (
            len(widths) == 5 and widths[1] > widths[2]
        )  # 390 ms until restarted, 209 ms from there


def test_a_protocol_with_logs_shows_its_recovery_line(browser: Chrome) -> None:
    view = VIEWS["lines"]()
    with serving(MadeLive(view)) as server:
        page = Page(browser, server.link)
        page.part("checkpoints")
        rows = page.text(".recovery-line")
        for shard, at in view["recovery_line"].items():
            assert shard in rows and f"#{at['number']}" in rows
        assert "feedback" not in rows
        page.part("overview")
        page.shows("feedback", "[data-edge='rank → rank']")


def test_the_advisers_curve_has_the_present_interval_on_it(browser: Chrome) -> None:
    with serving(MadeLive(busy())) as server:
        page = Page(browser, server.link)
        page.part("checkpoints")
        assert page.text(".pin.present") == "now: 5 s"
        assert page.text(".pin.best") == "best: 3.5 s"


def test_a_chart_is_read_with_the_arrow_keys(browser: Chrome) -> None:
    view = busy()
    view["series"]["in_per_s"][-2] = 123_400.0
    with serving(MadeLive(view)) as server:
        page = Page(browser, server.link)
        page.one("[data-measure='throughput'] svg[tabindex]").send_keys(Keys.ARROW_LEFT)
        page.shows("123 k/s", "[data-measure='throughput'] figcaption")


def test_a_stream_that_breaks_is_said_and_taken_up_again(
    browser: Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a server that has the same token: one with another wants its own link."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    monkeypatch.setenv(TOKEN_FILE, str(token))
    live = MadeLive(busy())
    with serving(live) as server:
        page = Page(browser, server.link)
        port = server.port
    page.shows("No update for", "#stale")
    assert "82.3 k/s" in page.text(".graph"), "what was known is still there"
    live.becomes(failing())
    with serving(live, port=port):
        page.hides("#stale")
        page.one("#recovering")
    monkeypatch.delenv(TOKEN_FILE)
    with serving(live, port=port):
        page.shows("open the newest link", "#stale")


def test_an_action_without_the_token_is_refused_and_one_with_it_is_done(browser: Chrome) -> None:
    asked = Asked()
    live = MadeLive(busy())
    with serving(live, asked) as server:
        browser.get(server.url)
        WebDriverWait(browser, PATIENCE_S).until(
            lambda _: "Open the link" in browser.find_element(By.ID, "refused").text
        )
        assert "told" not in browser.page_source and "82.3 k/s" not in browser.page_source

        page = Page(browser, server.link)
        page.one(".actions")
        browser.execute_script("sessionStorage.clear()")
        page = Page(browser, server.url)  # with the cookie of the visit before
        page.shows("Read-only", ".read-only")
        assert page.asks("return document.cookie") == "", "no script can read it"
        status = page.asks("return (await fetch('api/actions/stop', {method: 'POST'})).status")
        assert status in (401, 403) and asked.acts == []

        page = Page(browser, server.link)
        assert "token" not in browser.current_url, "who is shown the page does not see it"
        page.press("Checkpoint now")
        page.shows("checkpoint: done", "#message")
        page.press("Interval …")
        field = page.one(".dialog input")
        field.clear()
        field.send_keys("2000", Keys.ENTER)
        page.shows("so long an interval is none", "#message")
        page.press("Stop …")
        page.one(".dialog:focus-within")
        browser.switch_to.active_element.send_keys(Keys.ESCAPE)
        page.hides(".dialog")
        assert [name for name, _ in asked.acts] == ["checkpoint"]
        page.click("[data-table='workers'] tbody tr:nth-child(2) button")
        page.press("Kill it")
        page.wait(lambda: len(asked.acts) == 2)
        assert asked.acts[1][0] == "kill"


def test_light_and_dark_follow_the_system_until_the_reader_chooses(browser: Chrome) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    with serving(MadeLive(busy())) as server:
        page = Page(browser, server.link)
        light = page.asks(ground)
        in_scheme(browser, "dark")
        dark = page.asks(ground)
        assert light != dark
        page.click("#theme")  # auto -> light
        page.wait(lambda: page.asks(ground) == light)
        page.click("#theme")
        page.wait(lambda: page.asks(ground) == dark)
        page.click("#theme")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_against_its_ground(scheme: str, browser: Chrome) -> None:
    in_scheme(browser, scheme)
    with serving(MadeLive(failing()), Asked()) as server:
        page = Page(browser, server.link)
        page.one("#recovering")
        for part in PARTS:
            page.part(part)
            weak = page.asks(CONTRASTS)
            assert weak == [], part


CONTRASTS = """
const painted = (text) => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const brush = canvas.getContext("2d");
  return (colours) => {
    brush.clearRect(0, 0, 1, 1);
    for (const colour of colours) { brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1); }
    return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
};
const paint = painted();
const light = (rgb) => {
  const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const weak = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  if (!own || !element.checkVisibility() || ["SCRIPT", "NOSCRIPT", "OPTION", "title"].includes(element.tagName)) continue;
  const grounds = [];
  for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
  const style = getComputedStyle(element);
  const ink = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
  const [one, other] = [light(paint(grounds)), light(paint([...grounds, ink]))];
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (ratio < 4.5) weak.push(`${element.textContent.slice(0, 30)} (${element.className}): ${ratio.toFixed(2)}`);
}
return weak;
"""


def test_what_can_be_clicked_has_a_name_and_can_be_reached_with_the_keyboard(
    browser: Chrome,
) -> None:
    with serving(MadeLive(busy()), Asked()) as server:
        page = Page(browser, server.link)
        page.one("[data-operator='count']").send_keys(Keys.ENTER)
        page.one("[data-table='shards']")
        unnamed = """return [...document.querySelectorAll("button, a, input, select")]
          .filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).map((one) => one.outerHTML)"""
        for part in PARTS:
            page.part(part)
            assert page.asks(unnamed) == [], part


def test_many_failures_do_not_make_the_page_slow_to_say_the_newest(browser: Chrome) -> None:
    view: dict[str, Any] = busy()
    view["failures"] = [
        failure(f"worker 1 was killed, time {number}", ["count:0"], NOW - 1_000 + number)
        for number in range(200)
    ]
    with serving(MadeLive(view)) as server:
        page = Page(browser, server.link)
        page.part("failures")
        page.shows("worker 1 was killed, time 199", "[data-failure]")
        assert len(page.all("[data-failure]")) == 200
