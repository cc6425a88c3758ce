#!/usr/bin/env python3
"""Render docs/operating.md as the page `/operating` of the daemon, which needs nothing from a network.

    scripts/render_operating.py > bruce_mp/status/static/operating.html

A test fails if the page is out of date. The status page shows problems in the words of `/healthz`, each with a link to
the row of the table about this problem; so these rows get ids. Links to other pages of the documentation, which the
daemon does not serve, are replaced by the link's text and the name of the page.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

SOURCE: Final = Path(__file__).parent.parent / "docs" / "operating.md"
TABLE: Final = "What `/healthz` says"
"""Heading above the table in which the rows get ids."""
PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>bruce: operating</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="page.css">
</head>
<body>
<nav><a href=".">Status page</a></nav>
<main class="doc">
{body}</main>
</body>
</html>
"""


def slug(text: str) -> str:
    """Return the id, for links, of a heading or of a row of the table."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def render(source: str) -> str:
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = list(add_ids_and_names(markdown.parse(source)))
    return PAGE.format(body=markdown.renderer.render(tokens, markdown.options, {}))


def add_ids_and_names(tokens: Sequence[Token]) -> Iterator[Token]:
    """Add ids to headings and to the rows of the table, and replace links to other pages by their names."""
    heading = ""
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[index + 1].content
            token.attrSet("id", slug(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")))
        elif token.type == "tr_open" and heading == TABLE and (phrase := tokens[index + 2].content).startswith("`"):
            token.attrSet("id", slug(phrase))
            token.attrSet("data-phrase", phrase.strip("`"))
        elif token.type == "inline":
            token.children = list(replace_page_links(token.children or []))
        yield token


def replace_page_links(tokens: Sequence[Token]) -> Iterator[Token]:
    """Replace each link to another page by its text, followed by the name of the page in parentheses."""
    page = ""
    for token in tokens:
        target = str(token.attrGet("href") or "")
        if token.type == "link_open" and not target.startswith(("#", "http")):
            page = target.partition("#")[0]
        elif token.type == "link_close" and page:
            token.type, token.tag, token.nesting = "html_inline", "", 0
            token.content = f' <span class="quiet">({escape(page)})</span>'
            yield token
            page = ""
        else:
            yield token


if __name__ == "__main__":
    print(render(SOURCE.read_text()), end="")
