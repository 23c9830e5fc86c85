"""What a request must bring before a page sees it, and what each answer tells the browser to forbid."""

from __future__ import annotations

import http.client
import logging
import socket
import time
from collections.abc import Iterator
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import pytest

from offsetstore import OffsetStore
from offsetstore.errors import ConfigurationError, StoreUnavailable
from offsetstore.monitoring.dashboard import forms, security, serving
from offsetstore.monitoring.dashboard.security import HEADERS
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.monitoring.dashboard.views import groups
from offsetstore.testing import StaticBroker
from tests.integration.pages.conftest import NO_TLS, P0, Site, give, hold_still
from tests.support import page_forms

pytestmark = pytest.mark.behaviour("DASH-3")

TOKEN = "t0ken-" * 6
HTML = {"Accept": "text/html"}
SECRET = "4711-of-a-customer"


@pytest.fixture
def guarded(store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[DashboardServer]:
    """A server that asks for a token."""
    monkeypatch.setattr(serving, "_PAUSE", 0.2)
    settings = DashboardSettings(port=0, token=TOKEN, allowed_hosts=("Dash.example",))
    with DashboardServer(store, broker, settings) as server:
        hold_still(server)
        yield server


@pytest.fixture
def stranger(guarded: DashboardServer) -> Iterator[httpx.Client]:
    """A browser that has not signed in."""
    with httpx.Client(base_url=guarded.url, headers=HTML, timeout=60, verify=NO_TLS) as client:
        yield client


def origin(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")


def sign_in(client: httpx.Client, token: str = TOKEN, **headers: str) -> httpx.Response:
    return client.post("/login", data={"token": token}, headers={"Origin": origin(client), **headers})


def raw(
    server: DashboardServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    """Ask for a path as it is, which httpx would tidy up."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


# --- the token ---------------------------------------------------------------------------------------------------


def test_what_no_request_could_have_is_refused_at_once_and_the_token_is_in_no_text() -> None:
    for token in (None, "short", "t" * 31):
        with pytest.raises(ConfigurationError):
            DashboardSettings(host="0.0.0.0", token=token)  # noqa: S104 - it is refused
    assert DashboardSettings(host="0.0.0.0", token="t" * 32).token  # noqa: S104 - it does not listen
    for name in ("dash.example:8443", "::1", "http://dash.example", ""):
        with pytest.raises(ConfigurationError, match="not a host name"):
            DashboardSettings(allowed_hosts=(name,))
    assert DashboardSettings(allowed_hosts=("Dash.example", "[::1]")).access.hosts
    for token in ("ü" * 32, "t" * 32 + "\n", "t" * 16 + " " + "t" * 16, "\udcff" * 32):
        with pytest.raises(ConfigurationError) as caught:
            DashboardSettings(token=token)
        assert token.strip() not in str(caught.value)
    settings = DashboardSettings(token=TOKEN)
    assert TOKEN not in f"{settings!r} {settings.access!r}"


def test_a_stranger_sees_no_page_and_nothing_that_was_measured(
    guarded: DashboardServer, stranger: httpx.Client
) -> None:
    sent_on = stranger.get("/")
    assert (sent_on.status_code, sent_on.headers["location"]) == (303, "/login")
    assert stranger.get("/", headers={"Accept": "application/json"}).status_code == 401
    for path in ("/login", "/static/none.css", "/static/../group", "/static/%2e%2e/store"):
        text = raw(guarded, path, **HTML)[2]
        assert "<h1>" in text, path
        assert "Not measured yet" in text
    for path in ("/loginx", "/login/", "/login/../", "/static", "//static/style.css", "/Static/x", "/x"):
        assert raw(guarded, path)[0] == 401, path


def test_who_signs_in_gets_a_cookie_that_scripts_and_other_sites_do_not_and_comes_to_the_page_that_was_asked_for(
    store: OffsetStore, guarded: DashboardServer, stranger: httpx.Client
) -> None:
    give(store, "a b&c#d", {P0: 4})
    guarded.snapshots.take()
    wanted = stranger.build_request("GET", "/group", params={"group": "a b&c#d"}).url.raw_path.decode()
    browser = page_forms.Browser(stranger)
    login = browser.open(stranger.get(wanted).headers["location"])
    assert f'<a href="{wanted}">' in login.answer.text  # a link from another site comes without the cookie
    again = browser.send(login, token="wrong")
    answer = browser.send(again, token=TOKEN).answer
    assert (answer.status_code, answer.headers["location"]) == (303, wanted)
    attributes = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]}
    assert attributes == {"httponly", "samesite=strict", "path=/", f"max-age={security.SESSION}"}
    assert TOKEN not in answer.headers["set-cookie"]
    assert stranger.get(wanted).status_code == 200
    assert sign_in(stranger).headers["location"] == "/"


def test_who_signs_in_is_never_sent_elsewhere(stranger: httpx.Client) -> None:
    for wanted in ("//evil.example", "https://evil.example", "javascript:alert(1)", "evil", "/\\evil", "/\t/evil"):
        page = stranger.get("/login", params={"next": wanted})
        answer = stranger.post("/login", data={"token": TOKEN, "next": wanted}, headers={"Origin": origin(stranger)})
        assert answer.headers["location"] == "/", wanted
        assert "evil" not in page.text
        assert "alert" not in page.text


@pytest.mark.behaviour("DASH-6")
def test_who_signs_out_ends_the_session_on_the_server_and_no_other(
    guarded: DashboardServer, stranger: httpx.Client, client: httpx.Client
) -> None:
    assert "Sign out" not in client.get("/").text, "without a token there is nothing to sign out of"
    assert "Sign out" not in stranger.get("/login").text
    with httpx.Client(base_url=str(stranger.base_url), headers=HTML, timeout=60, verify=NO_TLS) as other:
        sign_in(stranger)
        sign_in(other)
        page = stranger.get("/store")
        assert '<form method="post" action="/logout"><button>Sign out</button></form>' in page.text
        copied = cookie_of(stranger)
        assert raw(guarded, "/", Cookie=copied)[0] == 200
        answer = stranger.post("/logout", headers={"Origin": origin(stranger)})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert stranger.get("/").status_code == 303
        assert raw(guarded, "/", Cookie=copied)[0] == 401
        assert other.get("/").status_code == 200
    again = stranger.post("/logout", headers={"Origin": origin(stranger)})
    assert again.status_code == 303, "once more does no harm"


def test_a_form_that_does_not_end_is_given_up_and_one_that_is_too_long_is_not_read_to_its_end(
    guarded: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "_PATIENCE", 0.2)
    address = urlsplit(guarded.url)
    for length, body, status in (
        (100, b"token=", b" 408 "),
        (10_000_000, b"token=" + b"t" * forms.LONGEST, b" 413 "),
    ):
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            head = f"POST /login HTTP/1.1\r\nHost: {address.netloc}\r\nOrigin: http://{address.netloc}\r\n"
            connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
            assert status in connection.recv(100)


def test_only_the_origin_tells_that_there_is_tls(stranger: httpx.Client) -> None:
    secure = sign_in(stranger, Origin=origin(stranger).replace("http:", "https:"))
    assert "Secure" in secure.headers["set-cookie"]
    sent = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.0.0.1", "X-Forwarded-Host": "evil.example"}
    assert "Secure" not in sign_in(stranger, **sent).headers["set-cookie"]
    assert stranger.get("/", headers={**sent, "Host": "evil.example"}).status_code == 421


def test_programs_send_the_token_with_each_request_and_a_wrong_one_takes_its_time_and_gets_no_cookie(
    stranger: httpx.Client,
) -> None:
    for scheme in ("Bearer", "bearer"):
        assert stranger.get("/", headers={"Authorization": f"{scheme} {TOKEN}"}).status_code == 200
    for sent in (b"", b"Bearer", b"Bearer " + TOKEN[:-1].encode(), f"Basic {TOKEN}".encode(), b"Bearer \xff\xfe"):
        assert stranger.get("/", headers={b"Authorization": sent, b"Accept": b"*/*"}).status_code == 401, sent
    headers = {"Origin": origin(stranger), "Content-Type": "application/x-www-form-urlencoded"}
    for token in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü€😀" * 12, "\ud800"):
        began = time.monotonic()
        answer = stranger.post("/login", content=b"token=" + token.encode(errors="surrogatepass"), headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert time.monotonic() - began >= 0.2
        assert "That is not the token" in answer.text


def cookie_of(client: httpx.Client) -> str:
    """The cookie of a browser that has signed in, as it would be sent once more by whoever has copied it."""
    [(name, value)] = client.cookies.items()
    return f"{name}={value}"


@pytest.mark.behaviour("DASH-6")
def test_only_a_cookie_of_this_server_counts_for_its_time_and_until_a_restart(
    store: OffsetStore,
    broker: StaticBroker,
    guarded: DashboardServer,
    stranger: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sign_in(stranger)
    cookie = cookie_of(stranger)
    name, _equals, session = cookie.partition("=")
    for forged in ("", ".", session[:-1], session + "0", session.swapcase(), TOKEN, "ÿ.ÿ"):
        assert raw(guarded, "/", Cookie=f"{name}={forged}")[0] == 401, forged
    with DashboardServer(store, broker, DashboardSettings(port=0, token=TOKEN)) as restarted:
        assert raw(restarted, "/", Cookie=cookie)[0] == 401
    with monkeypatch.context() as patched:
        patched.setattr(security, "SESSION", -1)
        sign_in(stranger)
        assert raw(guarded, "/", Cookie=cookie_of(stranger))[0] == 401
    assert raw(guarded, "/", Cookie=cookie)[0] == 200
    sign_in(stranger)
    # Browsers send a cookie to every port of its host: dashboards on one leave each other's alone.
    with DashboardServer(store, broker, DashboardSettings(port=0, token=TOKEN[::-1])) as other:
        own = other.url.rstrip("/")
        assert stranger.post(f"{own}/login", data={"token": TOKEN[::-1]}, headers={"Origin": own}).status_code == 303
        assert [stranger.get(server.url).status_code for server in (guarded, other)] == [200, 200]


# --- hosts and origins -------------------------------------------------------------------------------------------


def test_a_server_answers_to_its_own_names_alone_with_any_port_and_in_any_case(guarded: DashboardServer) -> None:
    """A page of elsewhere that has its name lead here (DNS rebinding) sends that name."""
    names = "evil.example localhost.evil.example evil.example:80 localhost:evil localhost:80@evil.example"
    names += " localhost@evil.example [::1]evil.example [::1 127.0.0.1.nip.io 127.0.0.2"
    for host in ("", *names.split()):
        for path in ("/", "/login", "/static/style.css", "/none"):
            status, headers, _text = raw(guarded, path, Host=host)
            assert status == 421, host
            assert headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
    names = "localhost LOCALHOST:1 127.0.0.1 127.0.0.1:9466 [::1]:9466 dash.example DASH.example:443"
    for host in names.split():
        assert raw(guarded, "/login", Host=host)[0] == 200, host


def test_only_our_own_pages_may_send_anything_with_a_token_or_without(
    guarded: DashboardServer, client: httpx.Client
) -> None:
    host = urlsplit(guarded.url).netloc
    own = f"http://{host}"
    others = ["null", "http://evil.example", "http://[", "http://127.0.0.1", "http://127.0.0.1:1"]
    for headers in (
        {},
        *({"Origin": one} for one in (*others, f"{own}.evil.example", f"ftp://{host}", host, f"http://evil@{host}")),
        *({"Origin": own, "Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "none")),
        {"Referer": f"{own}/login"},
    ):
        sent = [(method, "/login") for method in ("POST", "PUT", "DELETE", "OPTIONS")]
        for method, path in (*sent, ("POST", "/actions/reset/execute")):
            status, answered, _text = raw(guarded, path, method, Authorization=f"Bearer {TOKEN}", **headers)
            assert status == 403, headers
            assert not {name for name in answered if name.lower().startswith("access-control-")}
    assert raw(guarded, "/actions/reset/execute", "POST", Origin=own)[0] == 401, "nor without the token"
    assert client.post("/login", data={"token": "x"}, headers={"Origin": "http://evil.example"}).status_code == 403
    answer = client.post("/none", headers={"Origin": origin(client), "Sec-Fetch-Site": "same-origin"})
    assert answer.status_code == 404


# --- every answer ------------------------------------------------------------------------------------------------


def test_each_answer_has_the_headers(store: OffsetStore, guarded: DashboardServer, stranger: httpx.Client) -> None:
    give(store, "billing", {P0: 4})
    guarded.snapshots.take()
    known = {"Authorization": f"Bearer {TOKEN}"}
    page = stranger.get("/", headers=known)
    file = stranger.get("/static/style.css")
    answers = {
        200: page,
        303: stranger.get("/"),
        304: stranger.get("/", headers={**known, "If-None-Match": page.headers["etag"]}),
        400: stranger.get("/?q=%00", headers=known),
        401: stranger.get("/", headers={"Accept": "*/*"}),
        403: stranger.post("/login"),
        404: stranger.get("/none", headers=known),
        405: stranger.post("/", headers={**known, "Origin": origin(stranger)}),
        421: stranger.get("/", headers={"Host": "evil.example"}),
    }
    assert {status: answer.status_code for status, answer in answers.items()} == {status: status for status in answers}
    assert set(answers[405].headers["allow"].split(", ")) == {"GET", "HEAD"}
    again = stranger.get("/static/style.css", headers={"If-None-Match": file.headers["etag"]})
    assert again.status_code == 304
    head = stranger.head("/", headers=known)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", page.headers["etag"])
    assert raw(guarded, "/", "HEAD")[0] == 401
    for answer in [*answers.values(), file, again, head, sign_in(stranger, "wrong"), sign_in(stranger)]:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "server" not in answer.headers
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_a_page_that_fails_tells_neither_the_browser_nor_the_log_why_and_an_error_of_ours_shows_its_next_step(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site.give("billing", {P0: 4})
    with monkeypatch.context() as patched:
        patched.setattr(groups, "page_of", Mock(side_effect=StoreUnavailable("it does not <i>answer</i>")))
        page = site.get()
    assert page.status_code == 503
    assert "it does not &lt;i&gt;answer&lt;/i&gt;" in page.text
    assert "Check OFFSETSTORE_URL" in page.text

    fail = Mock(side_effect=ValueError(SECRET))
    monkeypatch.setattr(groups, "_trends", fail)
    with caplog.at_level(logging.DEBUG):
        page = site.get()
        monkeypatch.setattr(site.server.snapshots, "latest", fail)  # now the error page fails, too
        bare = site.get()
    assert (page.status_code, bare.status_code) == (500, 500)
    assert "The page failed: ValueError." in page.text
    assert bare.text == "The page failed.\n"
    assert {name: bare.headers.get(name) for name in HEADERS} == HEADERS
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("offsetstore.monitoring")]
    assert len(logged) == 2
    assert all(line.startswith("GET / failed: ValueError at ") for line in logged)
    for text in (page.text, bare.text, caplog.text):
        assert SECRET not in text
        assert "Traceback" not in text


def test_only_the_files_of_their_folder_are_served_and_odd_paths_are_unknown(
    server: DashboardServer, caplog: pytest.LogCaptureFixture
) -> None:
    paths = ["../../security.py", "..%2f..%2fsecurity.py", "%2fetc/passwd", "/etc/passwd", "%00", "%ff%fe"]
    for path in (*(f"/static/{one}" for one in paths), "/static/" + "x" * 5000, "/%0aforged"):
        assert raw(server, path)[0] == 404, path
    assert not [one for one in caplog.records if one.name.startswith(("offsetstore.monitoring", "uvicorn.error"))]
