"""What tests do with pages in a real Chromium: watch them for faults, check them with axe-core."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from tests.support.chromium import find_axe, find_chromium

Scheme = Literal["light", "dark"]

# Nothing a page asks for may leave this machine, not even the name of another.
_LOOPBACK_ONLY: Final = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"

# target-size is of WCAG 2.2, level AA, but is off unless asked for.
_RUN_AXE: Final = """() => axe.run(document, {
  resultTypes: ["violations"], preload: false, rules: {"target-size": {enabled: true}}
})"""


# The page's clock and its timers run so many times as fast.
_FASTER: Final = """(() => {
  const [now, every, begun] = [Date.now, setInterval, Date.now()];
  Date.now = () => begun + TIMES * (now() - begun);
  window.setInterval = (what, milliseconds) => every(what, milliseconds / TIMES);
})()"""


@contextmanager
def browse() -> Generator[Browser]:
    """Start the browser. Until it ends, this thread can run no other asyncio loop: Playwright's own is running."""
    chromium = find_chromium()
    assert chromium is not None, "neither the system nor npm has a Chromium"
    with sync_playwright() as playwright:  # it turns the sandbox off, which root could not start in
        browser = playwright.chromium.launch(
            executable_path=chromium.executable, env={**os.environ, **chromium.environment}, args=[_LOOPBACK_ONLY]
        )
        yield browser
        browser.close()


class Pages:
    """Opens pages, and notes their faults: a word on the console, an error, a request that fails or goes elsewhere.

    A request that the page itself gives up, mostly because it is left, is no fault.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._faults: list[str] = []

    def open(self, url: str, *, width: int = 1280, scheme: Scheme = "light", times: int = 1) -> Page:
        """Open an address in a browser without a past.

        :param width: of the window, in CSS pixels.
        :param times: how many times as fast the page's time goes.
        """
        context = self._browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce", locale="en-GB"
        )
        self._contexts.append(context)
        if times > 1:
            context.add_init_script(_FASTER.replace("TIMES", str(times)))
        own = urlsplit(url).netloc

        def check(asked: str) -> None:
            address = urlsplit(asked)
            if address.scheme not in {"data", "blob"} and address.netloc != own:
                self._faults.append(f"request to elsewhere: {asked}")

        context.on("console", self._console)
        context.on("weberror", lambda error: self._faults.append(f"error: {error.error}"))
        context.on("request", lambda request: check(request.url))
        context.on("requestfailed", self._failed)
        context.on("page", lambda page: page.on("websocket", lambda socket: check(socket.url)))
        page = context.new_page()
        page.goto(url)
        return page

    def take_faults(self) -> list[str]:
        """Return what has gone wrong so far, and forget it: for a test that provokes it."""
        for context in self._contexts:
            for page in context.pages:
                page.evaluate("0")  # what the page has said before this has arrived when it returns
        taken, self._faults = self._faults, []
        return taken

    def close(self) -> None:
        """Close every page."""
        for context in self._contexts:
            context.close()

    def _console(self, message: ConsoleMessage) -> None:
        kind = cast("str", message.type)  # Playwright's list of types lacks "verbose"
        if kind == "verbose":  # a hint of the browser's own, which no script can write: each version has others
            return
        self._faults.append(f"console, {message.type}: {message.text}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            self._faults.append(f"request failed: {request.url}: {request.failure}")


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule of axe-core, and the parts of the page that break it."""

    rule: str
    help: str
    parts: tuple[str, ...]


def axe(page: Page) -> list[Violation]:
    """Check the page as it is shown now: WCAG 2.2 up to level AA, and axe-core's best practices.

    For contrast, a page must set its own background: without one, axe-core takes it for white, in the dark too.
    """
    script = find_axe()
    assert script is not None, "npm has no axe-core"
    page.wait_for_load_state()  # a heading is there before its style sheet
    page.evaluate(script.read_text(encoding="utf-8"))  # unlike a script tag, no Content-Security-Policy forbids it
    found: list[dict[str, Any]] = page.evaluate(_RUN_AXE)["violations"]
    return [Violation(rule["id"], rule["help"], tuple(node["html"] for node in rule["nodes"])) for rule in found]
