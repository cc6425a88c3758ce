"""The dashboard `/` and the page `/operating`: static files of the package.

The script of the dashboard inserts data as text, so the browser never interprets data from clients as markup.
`scripts/render_operating.py` renders docs/operating.md to the page `/operating`. The dashboard links each problem to
the entry of `/operating` that explains it.
"""

from __future__ import annotations

import re
from functools import cache, partial
from html import unescape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from flask import Response

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["FILES", "add_front_page", "entry_of"]

_OPERATING: Final = "operating.html"
FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/operating": (_OPERATING, "text/html; charset=utf-8"),
}
"""(file name, content type) by path."""
_ENTRY_ROW: Final = re.compile(r'<tr id="([^"]*)" data-phrase="([^"]*)">')


def add_front_page(app: Flask) -> None:
    for path, (name, content_type) in FILES.items():
        app.add_url_rule(path, f"file {path}", partial(Response, _read(name), content_type=content_type))


def _read(name: str) -> bytes:
    return (files("bruce_mp.status") / "static" / name).read_bytes()


@cache
def _anchors() -> dict[str, str]:
    """Map a phrase of each explained problem or warning to the anchor of its entry in `/operating`."""
    return {unescape(phrase): anchor for anchor, phrase in _ENTRY_ROW.findall(_read(_OPERATING).decode())}


def entry_of(sentence: str) -> str:
    """Return the address of the entry that explains a problem or warning of `/healthz`, or "" if there is no entry.

    If the sentence contains several known phrases, use the first one, because the end of the sentence may quote an
    error of another program.
    """
    # The minimum is the first phrase; if several phrases begin at the same place, it is the longest of them.
    found = [
        (sentence.index(phrase), -len(phrase), anchor) for phrase, anchor in _anchors().items() if phrase in sentence
    ]
    return f"operating#{min(found)[2]}" if found else ""
