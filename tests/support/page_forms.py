"""A browser without scripts: it reads a page's forms, and sends them as browsers do."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx


@dataclass
class Form:
    """A form: where and how it is sent, and what is entered."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict[str, str])
    ticks: set[str] = field(default_factory=set[str])
    labelled: set[str] = field(default_factory=set[str])


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.ids: set[str] = set()
        self.described: dict[str, list[str]] = {}
        self.text: list[str] = []
        self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        if "aria-describedby" in given:
            self.described[given["id"]] = given["aria-describedby"].split()
        if tag == "form":
            self.forms.append(Form(given["action"], given["method"]))
        elif tag == "label" and self.forms:
            self.forms[-1].labelled.add(given["for"])
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and ("selected" in given or self._select not in self.forms[-1].fields):
            self.forms[-1].fields[self._select] = given.get("value", "")
        elif tag == "input" and given.get("type") == "checkbox":
            self.forms[-1].ticks.add(given["name"])
            if "checked" in given:
                self.forms[-1].fields[given["name"]] = given["value"]
        elif tag == "input":
            self.forms[-1].fields[given["name"]] = given.get("value", "")
            if given.get("type") == "hidden":
                self.forms[-1].labelled.add(given["name"])

    def handle_data(self, data: str) -> None:
        self.text.append(data)


class Page:
    """An answer."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.status = answer.status_code
        self.reader = _Reader()
        self.reader.feed(answer.text)
        self.text = " ".join("".join(self.reader.text).split())

    @property
    def form(self) -> Form:
        """The one form of the page."""
        [form] = self.reader.forms
        return form


class Browser:
    """Opens pages, and sends their forms from the server's own origin."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.origin = str(client.base_url).rstrip("/")

    def open(self, path: str, **query: str) -> Page:
        """GET."""
        return Page(self.client.get(path, params=query or None))

    def send(self, page: Page, **entered: str) -> Page:
        """Send the page's form, as it was filled in and with what is entered now."""
        fields = {**page.form.fields, **entered}
        if page.form.method == "get":
            return self.open(page.form.action, **_sent(fields))
        return self.post(page.form.action, fields)

    def post(self, path: str, fields: dict[str, str]) -> Page:
        """POST."""
        return Page(self.client.post(path, data=_sent(fields), headers={"Origin": self.origin}))


def _sent(fields: dict[str, str]) -> dict[str, str]:
    """The fields as every browser sends them: a line break is CR LF."""
    return {name: re.sub("\r\n|\r|\n", "\r\n", text) for name, text in fields.items()}
