"""What a test reads off a page in the browser. Everything waits for what is to be seen, as long as it takes."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_S = 120
"""A limit for tests that have failed; none waits so long otherwise."""
Seen = TypeVar("Seen")


class Page:
    """The page of one server in the browser."""

    def __init__(self, browser: Chrome, address: str) -> None:
        self.browser = browser
        browser.get("about:blank")
        self.forget()
        browser.get(address)
        self.wait(lambda: self.all("main"))

    def wait(self, look: Callable[[], Seen]) -> Seen:
        """What `look` finds, once it finds something."""
        passing = (
            NoSuchElementException,
            StaleElementReferenceException,
            ElementClickInterceptedException,
        )
        waiting = WebDriverWait(self.browser, PATIENCE_S, 0.05, ignored_exceptions=passing)
        try:
            return waiting.until(lambda _: look())
        except TimeoutException:
            shown = self.browser.find_element(By.TAG_NAME, "body").text
            raise AssertionError(f"it was not to be seen; this was:\n{shown}") from None

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.wait(lambda: self.browser.find_element(By.CSS_SELECTOR, selector))

    def text(self, selector: str = "body") -> str:
        return self.wait(lambda: (self.one(selector).text,))[0]

    def shows(self, text: str, selector: str = "body") -> None:
        self.wait(lambda: text in self.text(selector))

    def hides(self, selector: str) -> None:
        self.wait(lambda: not self.all(selector))

    def click(self, selector: str) -> None:
        def clicked() -> bool:
            self.browser.find_element(By.CSS_SELECTOR, selector).click()
            return True

        self.wait(clicked)

    def press(self, label: str) -> None:
        """The button with these words on it."""

        def pressed() -> bool:
            match = next((button for button in self.all("button") if button.text == label), None)
            if match is not None:
                match.click()
            return match is not None

        self.wait(pressed)

    def part(self, name: str) -> None:
        """Go to a part of the page: overview, checkpoints, ..."""
        self.click(f"nav a[href='#{name}']")
        self.one(f"nav a[href='#{name}'][aria-current]")

    def asks(self, script: str, *arguments: object) -> Any:
        """What a script in the page returns; it may be a promise."""
        waiting = (
            "const done = arguments[arguments.length - 1]; (async () => {"
            + script
            + "})().then(done)"
        )
        return self.browser.execute_async_script(waiting, *arguments)

    def complaints(self) -> list[str]:
        """What the console has been told since it was last asked."""
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since this was last asked."""
        events = (json.loads(entry["message"]) for entry in self.browser.get_log("performance"))
        sent = (event["message"] for event in events)
        return [
            event["params"]["request"]["url"]
            for event in sent
            if event["method"] == "Network.requestWillBeSent"
        ]

    def forget(self) -> None:
        self.browser.get_log("browser")
        self.browser.get_log("performance")
