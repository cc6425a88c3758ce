"""The dashboard `/`: static files of the package.

The page requests all its data from `/overview`, and nothing from other hosts. Its script inserts data as text, so the
browser never interprets client data as markup.

Separate because each page has its own module.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final

from flask import Response

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["FILES", "add_front_page"]

FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""File and content type of each path."""


def add_front_page(app: Flask) -> None:
    directory = files("bruce_mp.status") / "static"
    for path, (name, content_type) in FILES.items():
        _add_file(app, path, (directory / name).read_bytes(), content_type)


def _add_file(app: Flask, path: str, data: bytes, content_type: str) -> None:
    app.add_url_rule(path, f"file {path}", lambda: Response(data, content_type=content_type))
