"""What the tests of the dashboard would notice, on pages made to be noticed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import pytest
from playwright.sync_api import Browser

from tests.integration.dashboard.conftest import without_faults
from tests.support.browser import Pages, Scheme, axe
from tests.support.keyboard import Stop, tab_order, unreachable
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs_program("chromium")

PAGE = """\
<!doctype html>
<html lang="en">
<head><title>Flights</title><meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/style.css">
</head>
<body><main><h1>Flights</h1>{body}</main><script src="/script.js"></script></body>
</html>
"""
STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
CLEAN = "<p>Five groups → <code>flights</code></p><label>Reason <input></label> <button>Pause</button>"


@dataclass
class Site:
    """One page, with its style and script, at a port of this machine."""

    url: str
    files: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    policy: str = STRICT

    def show(self, body: str, *, style: str = "", script: str = "", policy: str = STRICT) -> str:
        self.policy = policy
        self.files["/"] = ("text/html", PAGE.format(body=body))
        self.files["/style.css"] = ("text/css", ":root { color-scheme: light dark; background: Canvas }" + style)
        self.files["/favicon.ico"] = ("image/x-icon", "")  # a Chromium with windows asks for it, npm's does not
        self.files["/script.js"] = ("text/javascript", script)
        return self.url


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/hang-up":
                return
            kind, text = made.files.get(self.path, ("", ""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Security-Policy", made.policy)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has above
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Site(f"http://127.0.0.1:{server.server_port}/")
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()  # seconds until it sees its end
        yield made
        server.shutdown()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Pages]:
    """Pages whose faults fail nothing."""
    pages = Pages(browser)
    yield pages
    pages.close()


def wait_for_fault(pages: Pages, start: str) -> None:
    wait_until(lambda: any(fault.startswith(start) for fault in pages.take_faults()))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_a_page_without_fault(pages: Pages, site: Site, width: int, scheme: Scheme) -> None:
    page = pages.open(site.show(CLEAN), width=width, scheme=scheme)
    assert page.evaluate("innerWidth") == width
    assert page.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
    assert axe(page) == []
    assert tab_order(page) == [Stop("textbox", "Reason"), Stop("button", "Pause")]
    assert unreachable(page) == []


def test_a_hint_of_the_browser_s_own_is_no_fault_of_the_page(pages: Pages, site: Site) -> None:
    """Such as one for a form with a password and no name, which not every Chromium prints."""
    pages._console(
        cast("Any", SimpleNamespace(type="verbose", text="[DOM] Password forms should have username fields"))
    )
    pages.open(site.show('<form><label>Token <input type="password"></label></form>'))
    assert pages.take_faults() == []


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("console.error('broken')", "console, error: broken"),
        ("throw new Error('broken')", "error: broken"),
        ("Promise.reject(new Error('broken'))", "error: broken"),
        ("fetch('/missing')", "console, error: Failed to load resource: the server responded with a status of 404"),
        ("fetch('/hang-up')", "request failed: {url}hang-up: net::ERR_EMPTY_RESPONSE"),
        ("document.querySelector('main').setAttribute('style', 'color: red')", "console, error: "),
    ],
)
def test_what_goes_wrong_in_a_page(watched: Pages, site: Site, script: str, fault: str) -> None:
    watched.open(site.show(CLEAN, script=script))
    wait_for_fault(watched, fault.format(url=site.url))


@pytest.mark.parametrize(
    "script", ["fetch('http://elsewhere.invalid/').catch(() => 0)", "new WebSocket('ws://elsewhere.invalid/')"]
)
def test_a_request_to_elsewhere_where_no_policy_forbids_it(watched: Pages, site: Site, script: str) -> None:
    watched.open(site.show(CLEAN, script=script, policy=""))
    wait_for_fault(watched, "request to elsewhere: ")


def test_a_fault_fails_the_test(browser: Browser, site: Site) -> None:
    with pytest.raises(AssertionError, match="console, error: broken"), without_faults(browser) as pages:
        pages.open(site.show(CLEAN, script="console.error('broken')"))


def test_axe_finds_a_missing_label_poor_contrast_in_one_scheme_alone_and_small_targets(
    pages: Pages, site: Site
) -> None:
    (violation,) = axe(pages.open(site.show("<input>")))
    assert (violation.rule, violation.parts) == ("label", ("<input>",))
    url = site.show("<p>Lag</p>", style="p { color: #444 }")
    assert axe(pages.open(url, scheme="light")) == []
    assert [violation.rule for violation in axe(pages.open(url, scheme="dark"))] == ["color-contrast"]
    style = "button { width: 12px; height: 12px; padding: 0; margin: 0; border: 0; display: block }"
    body = '<button aria-label="Pause"></button><button aria-label="Resume"></button>'
    assert [violation.rule for violation in axe(pages.open(site.show(body, style=style)))] == ["target-size"]


def test_what_the_keyboard_does_not_reach(pages: Pages, site: Site) -> None:
    script = "document.getElementById('clicked')?.addEventListener('click', () => 0)"
    for control in (
        '<button tabindex="-1">Pause</button>',
        '<a href="/" tabindex="-1">Flights</a>',
        '<span role="button">Pause</span>',
        '<div id="clicked">Pause</div>',
        '<input type="radio" name="a" tabindex="-1">',
    ):
        page = pages.open(site.show(CLEAN + control, script=script))
        assert unreachable(page) == [control]
    style = "div { height: 20px; overflow: auto } p { height: 99px }"
    page = pages.open(site.show('<div><p id="clicked">Pause</p></div>', style=style, script=script))
    assert [stop.role for stop in tab_order(page)] == ["generic"], "what scrolls is a stop"
    assert unreachable(page) == ['<p id="clicked">Pause</p>'], "and no excuse for what is in it"


def test_what_need_not_be_reached_or_is(pages: Pages, site: Site) -> None:
    script = """
    for (const element of document.querySelectorAll('.clicked')) element.addEventListener('click', () => 0);
    document.body.addEventListener('click', () => 0);
    document.querySelector('dialog')?.showModal();
    """
    for controls in (
        '<button disabled>Pause</button><input type="checkbox" disabled><input type="hidden"><b hidden>Go</b>',
        '<label><input type="radio" name="a">Stop</label><label><input type="radio" name="a">Retry</label>',
        '<select><option>Stop<option>Retry</select><details><summary>More</summary><a href="/">Inside</a></details>',
        '<div inert class="clicked"><b class="clicked">G</b></div><button aria-disabled="true" tabindex="-1"></button>',
        '<table class="clicked"><tr><td><a href="/">Flights</a></table><button><b class="clicked">Pause</b></button>',
        '<button>Behind</button><div class="clicked">Behind</div><dialog><button>Cancel</button></dialog>',
    ):
        page = pages.open(site.show(controls, script=script, policy=""))
        assert unreachable(page) == [], controls
