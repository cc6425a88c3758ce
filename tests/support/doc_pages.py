"""The pages of the documentation, and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PAGES", "ROOT", "Block", "all_blocks", "blocks_of", "commands_in", "name_of", "prose_of"]

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").rglob("*.md")))
_FENCED: Final = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.  `page` is the path below the root; `text` lacks the fence's indentation; `line` is from 0."""

    page: str
    language: str
    text: str
    line: int

    @property
    def key(self) -> tuple[str, str]:
        """Return a key that survives changes above the block: its page and its first characters."""
        return self.page, self.text.partition("\n")[0][:40].strip()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            name_of(page),
            found[2],
            re.sub(f"^{found[1]}", "", found[3], flags=re.MULTILINE),
            text.count("\n", 0, found.start()),
        )
        for found in _FENCED.finditer(text)
    ]


def all_blocks() -> Iterator[Block]:
    for page in PAGES:
        yield from blocks_of(page)


def prose_of(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return _FENCED.sub("", page.read_text())


def commands_in(block: Block) -> list[str]:
    """Return the commands that a reader types, with continuation lines joined."""
    text = re.sub(r"^\$ ", "", block.text, flags=re.MULTILINE) if block.language == "console" else block.text
    return text.replace("\\\n", " ").splitlines()
