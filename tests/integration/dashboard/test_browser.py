"""What the tests of the dashboard would notice, on pages made to be noticed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, Page

from tests.integration.dashboard.conftest import without_faults
from tests.support.browser import Pages, Scheme, axe
from tests.support.keyboard import Stop, tab_order, unreachable
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs_program("chromium")

PAGE = """\
<!doctype html>
<html lang="en">
<head><title>Flights</title><meta name="viewport" content="width=device-width">
<style>:root {{ color-scheme: light dark; background: Canvas }} {style}</style></head>
<body><main><h1>Flights</h1>{body}</main><script>{script}</script></body>
</html>
"""
CLEAN = "<p>Five groups → <code>flights</code></p><label>Reason <input></label> <button>Pause</button>"


def show(
    pages: Pages, body: str, *, style: str = "", script: str = "", width: int = 1280, scheme: Scheme = "light"
) -> Page:
    page = pages.open("about:blank", width=width, scheme=scheme)
    page.route("http://here.invalid/missing", lambda route: route.fulfill(status=404))
    page.set_content(PAGE.format(body=body, style=style, script=script))
    return page


@pytest.fixture
def watched(browser: Browser) -> Iterator[Pages]:
    """Pages whose faults fail nothing."""
    pages = Pages(browser)
    yield pages
    pages.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_a_page_without_fault(pages: Pages, width: int, scheme: Scheme) -> None:
    page = show(pages, CLEAN, width=width, scheme=scheme)
    assert page.evaluate("innerWidth") == width
    assert page.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
    assert axe(page) == []
    assert tab_order(page) == [Stop("textbox", "Reason"), Stop("button", "Pause")]
    assert unreachable(page) == []
    # A hint of the browser's own is no fault of the page.
    pages._console(cast("Any", SimpleNamespace(type="verbose", text="[DOM] Password forms should have usernames")))
    assert pages.take_faults() == []


def test_what_goes_wrong_in_a_page_fails_the_test(browser: Browser, watched: Pages) -> None:
    for script, fault in (
        ("throw new Error('broken')", "error: broken"),
        ("Promise.reject(new Error('broken'))", "error: broken"),
        ("fetch('http://here.invalid/missing')", "console, error: Failed to load resource: the server responded with"),
        ("fetch('http://elsewhere.invalid/')", "request failed: http://elsewhere.invalid/: net::ERR_"),
        ("fetch('http://elsewhere.invalid/').catch(() => 0)", "request to elsewhere: "),
        ("new WebSocket('ws://elsewhere.invalid/')", "request to elsewhere: "),
    ):
        show(watched, CLEAN, script=script)
        wait_until(lambda fault=fault: any(one.startswith(fault) for one in watched.take_faults()))
    with pytest.raises(AssertionError, match="console, error: broken"), without_faults(browser) as pages:
        show(pages, CLEAN, script="console.error('broken')")


def test_axe_finds_a_missing_label_poor_contrast_in_one_scheme_alone_and_small_targets(pages: Pages) -> None:
    small = "button { width: 12px; height: 12px; padding: 0; margin: 0; border: 0; display: block }"
    buttons = '<button aria-label="Pause"></button><button aria-label="Resume"></button>'
    cases: list[tuple[str, str, Scheme, list[str]]] = [
        ("<input>", "", "light", ["label"]),
        ("<p>Lag</p>", "p { color: #444 }", "light", []),
        ("<p>Lag</p>", "p { color: #444 }", "dark", ["color-contrast"]),
        (buttons, small, "light", ["target-size"]),
    ]
    for body, style, scheme, rules in cases:
        found = axe(show(pages, body, style=style, scheme=scheme))
        assert [violation.rule for violation in found] == rules
        assert all(body.startswith(part) for violation in found for part in violation.parts[:1])


def test_what_the_keyboard_does_not_reach(pages: Pages) -> None:
    script = "document.getElementById('clicked')?.addEventListener('click', () => 0)"
    for control in (
        '<button tabindex="-1">Pause</button>',
        '<a href="/" tabindex="-1">Flights</a>',
        '<span role="button">Pause</span>',
        '<div id="clicked">Pause</div>',
        '<input type="radio" name="a" tabindex="-1">',
    ):
        assert unreachable(show(pages, CLEAN + control, script=script)) == [control]
    style = "div { height: 20px; overflow: auto } p { height: 99px }"
    page = show(pages, '<div><p id="clicked">Pause</p></div>', style=style, script=script)
    assert [stop.role for stop in tab_order(page)] == ["generic"], "what scrolls is a stop"
    assert unreachable(page) == ['<p id="clicked">Pause</p>'], "and no excuse for what is in it"
