"""The XML file of Dory and Bruce as a tree that knows its lines.

Expat does the parsing.  A document type is refused, and with it all entities: these files never had one, and a few
lines of it can fill a machine's memory.
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
    """An element with its attributes; `text` is what stands between its tags."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, path: str) -> Iterator[Element]:
        """The elements at a path such as `namedConfigs/config` below this one."""
        tag, _, rest = path.partition("/")
        for child in self.children:
            if child.tag == tag:
                yield from child.all(rest) if rest else [child]

    def first(self, path: str) -> Element | None:
        """The first of `all(path)`."""
        return next(self.all(path), None)


def parse_xml(data: bytes, name: str) -> Element:
    """The root element.  Raises ConfigError, with the line, for what is no XML and for a document type."""
    parser = expat.ParserCreate()
    stack = [Element("", {}, 0)]

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].text += data

    def refuse(*_: object) -> None:
        line = parser.CurrentLineNumber
        raise ConfigError(f"{name}:{line}: a document type (<!DOCTYPE ...>) has no place in this file: remove it.")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        raise ConfigError(f"{name}:{error.lineno}: this is not XML: {what} (column {error.offset}).") from error
    except (LookupError, ValueError) as error:  # an encoding that does not exist, or that Python cannot help expat with
        raise ConfigError(f"{name}: cannot read it: {error}. Say US-ASCII or UTF-8 in the first line.") from error
    return stack[0].children[0]
