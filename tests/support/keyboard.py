"""What can be done on a page with the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from playwright.sync_api import Page

Send: TypeAlias = Callable[..., dict[str, Any]]

_IN_GROUPS: Final = frozenset({"menuitem", "menuitemcheckbox", "menuitemradio", "radio", "tab"})
_CONTROLS: Final = (
    _IN_GROUPS
    | {"button", "checkbox", "combobox", "link", "listbox", "searchbox", "slider", "spinbutton", "switch", "textbox"}
    | {"ColorWell", "Date", "DateTime", "DisclosureTriangle", "InputTime"}  # Chromium's own words
)

# What the mouse can't use either needs no key; a label is its control's; the parts of a date's field are not in the
# document; and a script that hears every click is about the page, or about what is closed by one beside it.
_USABLE: Final = """function () {
  const modal = document.querySelector(":modal");
  return this.getRootNode() === document && this.checkVisibility({visibilityProperty: true})
    && !this.matches("html, body, label, :disabled, [aria-disabled=true], [inert], [inert] *")
    && (!modal || modal.contains(this)) && this.outerHTML;
}"""

_PRESSES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Stop:
    """Where Tab stops, as a screen reader has it."""

    role: str
    name: str


def tab_order(page: Page) -> list[Stop]:
    """Press Tab until it comes round, and return its stops from the page's beginning."""
    with _devtools(page) as send:
        return list(_stops(page, send).values())


def unreachable(page: Page) -> list[str]:
    """Return the HTML of what can be operated with the mouse and not with the keyboard.

    That is: a control where Tab doesn't stop (of a group that arrow keys go through, one stop is enough), and anything
    else that reacts to clicks, unless it is part of a control, or only hears the clicks on controls inside of it.
    """
    with _devtools(page) as send:
        reached = _stops(page, send)
        roles = {stop.role for stop in reached.values()}
        suspects = _clickable(send, reached)
        for node in send("Accessibility.getFullAXTree")["nodes"]:
            number, role = node.get("backendDOMNodeId"), node.get("role", {}).get("value")
            if role in _IN_GROUPS & roles:
                suspects.discard(number)
            elif role in _CONTROLS and number not in reached:
                suspects.add(number)
        found = (_call(send, number, _USABLE) for number in sorted(suspects))
        return [html for html in found if html]


@contextmanager
def _devtools(page: Page) -> Generator[Send]:
    session = page.context.new_cdp_session(page)
    yield cast("Any", session).send
    session.detach()


def _stops(page: Page, send: Send) -> dict[int, Stop]:
    """By the DOM's numbers of the elements. At the end of the page its body has the focus, or the browser itself."""
    seen: dict[int, Stop | None] = {}
    previous = None
    for _ in range(_PRESSES):
        page.keyboard.press("Tab")
        node, stop = _focused(send)
        if node in seen and (node != previous or stop is None):  # a field for a date has several stops
            break
        seen[node] = stop
        previous = node
    else:
        raise AssertionError("Tab does not come round: the page holds the focus, or is made anew all the time")
    nodes = list(seen)
    first = next((place + 1 for place, node in enumerate(nodes) if seen[node] is None), 0)
    return {node: stop for node in nodes[first:] + nodes[:first] if (stop := seen[node])}


def _focused(send: Send) -> tuple[int, Stop | None]:
    active = send("Runtime.evaluate", {"expression": "document.activeElement"})["result"]
    one = {"objectId": active["objectId"]}
    (node,) = send("Accessibility.getPartialAXTree", {**one, "fetchRelatives": False})["nodes"]
    number: int = send("DOM.describeNode", one)["node"]["backendNodeId"]
    if active["className"] == "HTMLBodyElement":
        return number, None
    return number, Stop(node["role"]["value"], node.get("name", {}).get("value", "").strip())


def _clickable(send: Send, reached: Mapping[int, Stop]) -> set[int]:
    """Return what reacts to clicks, without what is above a stop or inside of a control that is one."""
    shot = send("DOMSnapshot.captureSnapshot", {"computedStyles": []})
    nodes = shot["documents"][0]["nodes"]
    numbers: list[int] = nodes["backendNodeId"]
    parents: list[int] = nodes["parentIndex"]

    def ancestry(index: int) -> list[int]:
        found: list[int] = []
        while index >= 0:
            found.append(numbers[index])
            index = parents[index]
        return found

    above = {node for index, number in enumerate(numbers) if number in reached for node in ancestry(index)}
    controls = {number for number, stop in reached.items() if stop.role in _CONTROLS}  # not: what can be scrolled
    return {
        numbers[index]
        for index in nodes["isClickable"]["index"]
        if numbers[index] not in above and controls.isdisjoint(ancestry(index))
    }


def _call(send: Send, number: int, function: str) -> Any:
    one = send("DOM.resolveNode", {"backendNodeId": number})["object"]["objectId"]
    asked = {"objectId": one, "functionDeclaration": function, "returnByValue": True}
    return send("Runtime.callFunctionOn", asked)["result"].get("value")
