"""The site: these pages, those at the top of the checkout, and the reference, made of the docstrings. `make docs`.

The pages are plain Markdown, which GitHub shows as it is. What the site needs beside them is made here, while Sphinx
reads a page: its links to files that are no pages, and the order of the pages, which is that of the links in index.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any, Final

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY: Final[str] = PROJECT["urls"]["Source"]
BRANCH: Final = "main"

project = PROJECT["name"]
version = release = PROJECT["version"]
author = "the contributors of offsetstore"
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_static", "_templates"]
nitpicky = True
smartquotes_action = "D"  # dashes alone: many a quoted text is code
# A console's lines that no shell would take, such as what a command prints, are shown in plain text.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
templates_path = ["_templates"]
html_show_search_summary = False  # it would fetch each page that is found, which no browser does from files
html_copy_source = False
html_show_copyright = False
html_theme_options: dict[str, Any] = {
    # Both are checked by axe-core on a page in either scheme.
    "light_css_variables": {"color-brand-primary": "#1d4f91", "color-brand-content": "#1d4f91"},
    "dark_css_variables": {"color-brand-primary": "#8ab8ff", "color-brand-content": "#8ab8ff"},
    "top_of_page_buttons": [],
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

myst_heading_anchors = 6  # as GitHub makes them
myst_links_external_new_tab = False

default_role = "obj"  # docstrings write a name in single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

# The pages of docs/project show files that GitHub wants at the top of the checkout.
SHOWN: Final = {
    "README.md": "project/readme",
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
    "SECURITY.md": "project/security",
    "CODE_OF_CONDUCT.md": "project/conduct",
    "examples/README.md": "project/examples",
}
FILES: Final = {docname: name for name, docname in SHOWN.items()}
EXAMPLES: Final = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.py"))

_LINK: Final = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_FENCE: Final = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def prose(text: str, change: Callable[[str], str]) -> str:
    """Change a page's text, but not its blocks of code."""
    return "".join(part if number % 2 else change(part) for number, part in enumerate(_FENCE.split(text)))


def target(file: str, link: str, anchor: str, docname: str) -> str:
    """Return what a link of a file leads to on the site.

    :param file: where the link stands; ``link`` is relative to it.
    :param docname: the page that shows the file.
    """
    path = normpath(f"{Path(file).parent.as_posix()}/{link}")
    folder = Path(docname).parent.as_posix()
    if path in EXAMPLES:
        return f"#{example_anchor(path)}"
    if path in SHOWN:
        return relpath(f"{SHOWN[path]}.md", folder) + anchor
    if path.startswith("docs/"):
        return relpath(path.removeprefix("docs/"), folder) + anchor
    if path.startswith(".."):  # GitHub's own, such as the form for a hole in security
        return f"{REPOSITORY}/{path.lstrip('./')}{anchor}"
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/{BRANCH}/{path}{anchor}"


def example_anchor(path: str) -> str:
    return f"example-{Path(path).stem.replace('_', '-')}"


def relinked(text: str, file: str, docname: str) -> str:
    """Return a page's text with the links that the site needs."""
    return prose(text, lambda part: _LINK.sub(lambda link: f"]({target(file, link[1], link[2] or '', docname)})", part))


def links_to_pages(text: str) -> dict[str, str]:
    """Return the words of each link to a page beside or below, by its name: the first one of each."""
    found: dict[str, str] = {}
    for words, page in re.findall(r"\[([^]]+)\]\(([\w./-]+)\.md\)", text):
        found.setdefault(page, " ".join(words.replace("`", "").split()))
    return found


def ordered(text: str) -> str:
    """Add a hidden table of contents for each section of the index: the pages that it links, by the links' words."""
    listed = set[str]()
    sections = re.split(r"(?m)^(?=## )", text)
    for number, section in enumerate(sections):
        pages = {page: words for page, words in links_to_pages(section).items() if page not in listed}
        listed.update(pages)
        if pages:
            caption = section.partition("\n")[0].removeprefix("## ")
            entries = "\n".join(f"{words} <{page}>" for page, words in pages.items())
            sections[number] = f"{section}\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n\n"
    return "".join(sections)


def with_sources(text: str) -> str:
    """Add the examples' sources to the page about them."""
    return text + "".join(
        f"\n\n({example_anchor(path)})=\n## {Path(path).name}\n\n```{{literalinclude}} ../../{path}\n```\n"
        for path in EXAMPLES
    )


def read_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Make of a page what the site shows of it."""
    text, file = content[0], f"docs/{docname}.md"
    if docname in FILES:
        file = FILES[docname]
        text = (ROOT / file).read_text(encoding="utf-8")
    text = relinked(text, file, docname)
    if docname == "project/examples":
        text = with_sources(text)
    content[0] = ordered(text) if docname == "index" else text
    if docname in FILES:
        app.env.note_dependency(str(ROOT / file))


def note_decision(app: Sphinx, doctree: nodes.document) -> None:
    """Let a decision that the decisions' index links be in no table of contents: a hundred are too many."""
    folder, _, name = app.env.current_document.docname.rpartition("/")
    index = DOCS / "decisions" / "README.md"
    if folder == "decisions" and name in links_to_pages(index.read_text(encoding="utf-8")):
        app.env.metadata[f"{folder}/{name}"]["orphan"] = True


def share_navigation(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Make the navigation beside decisions once: none of them is in it, and it takes a third of the build's time."""
    if "orphan" in app.env.metadata[pagename]:
        make: Callable[..., str] = context["toctree"]

        def once(**options: Any) -> str:
            if (key := repr(options)) not in _NAVIGATION:
                _NAVIGATION[key] = make(**options)
            return _NAVIGATION[key]

        context["toctree"] = once


_NAVIGATION: Final[dict[str, str]] = {}


# Where a public name is found by its last part: docstrings write `Append`, and signatures where it is defined.
PACKAGES: Final = (
    "offsetstore",
    *(f"offsetstore.{name}" for name in ("consumer", "errors", "monitoring", "outbox", "spark", "testing", "writers")),
)


def find_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Find a name in backticks, or a type of a signature.

    What is documented nowhere stays as it is, without a link. A member that its class lacks is a warning.
    """
    if node.get("refdomain") != "py":
        return None
    objects = env.domains.python_domain.objects
    parts = node["reftarget"].split(".")
    candidates = [(package, parts[-count:]) for count in (2, 1) for package in PACKAGES]
    candidates += [(package, parts[-2:-1]) for package in PACKAGES]  # a class, for its member
    for package, wanted in candidates:
        if wanted and (found := objects.get(name := ".".join([package, *wanted]))) is not None:
            if wanted == parts[-2:-1] and found.objtype in {"class", "exception"} and not has_member(name, parts[-1]):
                return None
            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, content, name)
    return content


def has_member(path: str, member: str) -> bool:
    module, _, name = path.rpartition(".")
    kind = getattr(import_module(module), name)
    if hasattr(kind, member) or any(member in getattr(base, "__annotations__", {}) for base in kind.__mro__):
        return True
    return re.search(rf"\bself\.{member}\b", getsource(kind)) is not None


def add_to_docstring(
    app: Sphinx,
    what: str,
    name: str,
    value: Any,
    options: Any,
    lines: list[str],
) -> None:
    """Add an error's usual next step, and make links of the pages that are named."""
    if what == "exception" and (step := getattr(value, "default_next_step", "")):
        lines += ["", f"What to do: {escaped(str(step))}", ""]
    lines[:] = [re.sub(r"\bdocs/([\w-]+)\.md", r":doc:`\1`", line) for line in lines]


def escaped(text: str) -> str:
    """Return a next step as reStructuredText: only its backticks mean something, and they are a command's."""
    return re.sub(r"`([^`]*)`|([*_|\\])", lambda found: f"``{found[1]}``" if found[1] else f"\\{found[2]}", text)


def short_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Leave out how an error is made, and where in memory a default is."""
    if what == "exception":
        return ("", None) if signature else None
    return signature and re.sub(r"<function ([\w.]+) at 0x[0-9a-f]+>", r"\1", signature), returns


# What the theme and Sphinx write that people with a screen reader would stumble over.
MENDED: Final = (
    (r'<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    (r'<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="Pages">'),
    (r'<aside class="toc-drawer(.*?)">', r'<aside class="toc-drawer\1" aria-label="On this page">'),
    # A table of which only some columns have a heading, or none.
    (r'<th class="head([^"]*)"><p></p></th>', r'<td class="head\1"></td>'),
    (r'<thead>\s*<tr[^>]*>(?:<td class="head[^"]*"></td>\s*)+</tr>\s*</thead>', ""),
    # A list of terms without a term: the parameters of a signature.
    (
        r'<dl>\n((?:<dd>(?:<em class="sig-param|<span class="optional).*</dd>\n)+)</dl>',
        r'<div class="sig-params">\n\1</div>',
    ),
    (r'<dd>((?:<em class="sig-param|<span class="optional).*)</dd>', r"<div>\1</div>"),
)


def mend(app: Sphinx, error: Exception | None) -> None:
    """Mend the pages that were written."""
    for page in Path(app.outdir).rglob("*.html") if error is None else ():
        text = page.read_text(encoding="utf-8")
        for wrong, right in MENDED:
            text = re.sub(wrong, right, text)
        page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("source-read", read_page)
    app.connect("doctree-read", note_decision, priority=900)  # after Sphinx has read the page's own metadata
    app.connect("html-page-context", share_navigation, priority=400)  # before the theme makes it
    app.connect("build-finished", mend)
    app.connect("missing-reference", find_name)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("autodoc-process-docstring", add_to_docstring)
