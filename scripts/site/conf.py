"""Configuration of Sphinx for the site of the documentation; `scripts/docs` builds it.

The sources are the Markdown files at their places in the repository. The sidebar has the lists of links in
`docs/README.md`.
"""

from __future__ import annotations

import os
import re
import sys
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Final

import mmdr
from docutils import nodes
from sphinx.addnodes import pending_xref

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bruce_mp import __version__  # noqa: E402
from scripts.site.reference import reference  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "bruce_mp"
version = release = __version__
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "clients/**.md"]
exclude_patterns = [".*", "bruce_mp", "build", "deploy", "tests", "**/node_modules", "**/target"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
default_role = "py:obj"  # `name` in a docstring
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
add_module_names = False

html_theme = "furo"
html_title = f"bruce_mp {__version__}"
html_static_path = ["site.css", "site.js"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["."]
html_copy_source = False
html_show_sphinx = html_show_copyright = False

NAVIGATION: Final = "docs/README"
FOLDER_INDEXES: Final = {"docs/decisions/README", "clients/README"}
"""Pages that list the other pages of their folder. These become entries of the sidebar below the page."""
REFERENCE: Final = "docs/reference"
DIAGRAM_THEME: Final = '%%{init: {"theme": "neutral"}}%%\n'


def add_generated_parts(app: Sphinx, page: str, source: list[str]) -> None:
    """Append to a page the parts that only the site has: its entries of the sidebar, or the generated reference.

    Sphinx calls this function for each page; `source` is a list of one string, the text of the page.
    """
    if page == root_doc:
        index = Path(app.env.doc2path(NAVIGATION))
        sections = re.split(r"^For (.*):$", index.read_text(), flags=re.MULTILINE)[1:]
        source[0] += toctree([NAVIGATION])
        for reader, links in zip(sections[::2], sections[1::2], strict=True):
            source[0] += toctree(linked_pages(index, links), f":caption: For {reader}\n")
    elif page in FOLDER_INDEXES:
        source[0] += toctree(linked_pages(Path(app.env.doc2path(page)), source[0]))
    elif page == REFERENCE:
        source[0] += reference()


def linked_pages(index: Path, text: str) -> list[str]:
    """Return the pages to which a part of an index links, without links to a heading of a page."""
    return [
        os.path.relpath(index.parent / target, ROOT)  # removes "..", and follows no symbolic link
        for target in re.findall(r"\]\(([^)#:]+)\.md\)", text)
    ]


def toctree(pages: list[str], caption: str = "") -> str:
    """Return the directive that makes these pages entries of the sidebar."""
    lines = "\n".join(f"/{page}" for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n{caption}\n{lines}\n```\n"


def draw_diagrams(_app: Sphinx, tree: nodes.document) -> None:
    """Replace the sources of diagrams by pictures, so that a browser needs no script to show them."""
    for block in list(tree.findall(nodes.literal_block)):
        if block["language"] == "mermaid":
            picture = mmdr.render(DIAGRAM_THEME + block.astext()).svg()
            width = re.search(r"max-width:([\d.]+)px", picture)
            encoded = b64encode(picture.encode()).decode()
            image = (
                f'<img class="diagram" alt="The diagram of this section" width="{width[1] if width else ""}"'
                f' src="data:image/svg+xml;base64,{encoded}">'
            )
            block.replace_self(nodes.raw("", image, format="html"))


def unlink_folders(app: Sphinx, tree: nodes.document) -> None:
    """Replace links to folders of the repository by their text: the site has a copy of single files only."""
    page = Path(app.env.doc2path(app.env.current_document.docname))
    for link in list(tree.findall(pending_xref)):
        if link["reftype"] == "myst" and (page.parent / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_generated_parts)
    app.connect("doctree-read", draw_diagrams)
    app.connect("doctree-read", unlink_folders)
