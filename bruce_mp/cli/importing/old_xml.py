"""Parser for the XML files of Dory and Bruce, which returns a tree with line numbers.

It rejects a document type, because nested entities in a document type can exhaust the memory. Valid files of Dory and
Bruce have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.parsers import expat

from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Element", "parse_xml"]


@dataclass(slots=True)
class Element:
    """An element; `line` is its line in the file, and `text` its text without the text of its children."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def find_all(self, path: str) -> Iterator[Element]:
        """Yield the elements at a path below this element, such as `namedConfigs/config`."""
        tag, _, rest = path.partition("/")
        for child in self.children:
            if child.tag == tag:
                yield from child.find_all(rest) if rest else [child]

    def first(self, path: str) -> Element | None:
        """Return the first element of `find_all(path)`, or None."""
        return next(self.find_all(path), None)


def parse_xml(data: bytes, name: str) -> Element:
    """Return the root element; `name` is the file's name for errors.

    Raise ConfigError, with the line, for invalid XML and for a document type.
    """
    parser = expat.ParserCreate()
    stack = [Element("", {}, 0)]  # a parent for the root element, then the open elements

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def text(characters: str) -> None:
        stack[-1].text += characters

    def refuse(*_: object) -> None:
        line = parser.CurrentLineNumber
        raise ConfigError(f"{name}:{line}: a document type (<!DOCTYPE ...>) is not allowed in this file: remove it.")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise ConfigError(f"{name}:{error.lineno}: this is not XML: {reason} (column {error.offset}).") from error
    except (LookupError, ValueError) as error:  # an encoding unknown to Python, or unusable for expat
        raise ConfigError(
            f"{name}: its encoding is not known, or not the declared one. Declare US-ASCII or UTF-8 in the first line."
        ) from error
    return stack[0].children[0]
