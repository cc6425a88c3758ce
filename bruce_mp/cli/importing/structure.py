"""Check of the elements and attributes in the old XML files, as strict as the check in the old daemons."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.importing.sections import SECTION_ATTRIBUTES
from bruce_mp.cli.importing.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.cli.importing.draft import Draft
    from bruce_mp.cli.importing.old_xml import Element

__all__ = ["check_structure"]

REPEATABLE_TAGS: Final = frozenset({"config", "topic", "broker"})
"""Tags of elements that may occur several times in their parent."""


def _known_attributes() -> dict[str, set[str]]:
    """Return the attributes of each known element by its path, such as `inputSources/tcp/port`."""
    known = {path: set(attributes) for path, attributes in SECTION_ATTRIBUTES.items()}
    for setting in SETTINGS:
        path, _, attribute = setting.xml_path.partition("@")
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            known.setdefault("/".join(parts[:depth]), set())
        known[path].add(attribute)
    return known


KNOWN_ATTRIBUTES: Final = _known_attributes()


def check_structure(root: Element, file: str, draft: Draft) -> None:
    """Add an error to the draft for each faulty element, and a note for each unknown attribute."""
    for element, text in _faults(root, ""):
        draft.add_error(f"{file}:{element.line}", text)
    for element, name in _unknown_attributes(root, ""):
        draft.add_note(f'{file}:{element.line}: {name}="{element.attributes[name]}" of <{element.tag}> is not known.')


def _faults(element: Element, path: str) -> Iterator[tuple[Element, str]]:
    """Yield each faulty element at or below `element`, with an error text; `path` is the path of `element`."""
    if element.text.strip():
        yield element, f'text in <{element.tag}> ("{element.text.strip()[:20]}") is not allowed: remove it.'
    seen: set[str] = set()
    for child in element.children:
        if child.tag in seen and child.tag not in REPEATABLE_TAGS:
            yield child, f"<{child.tag}> occurs twice: keep one."
        seen.add(child.tag)
        child_path = _join(path, child.tag)
        if child_path in KNOWN_ATTRIBUTES:
            yield from _faults(child, child_path)
        else:
            yield child, f"<{child.tag}> is not known in <{element.tag}>: {_hint(child.tag, path)}"


def _hint(tag: str, path: str) -> str:
    """Return the remedy for the unknown element `tag` in the element at `path`."""
    paths_and_tags = (known_path.rpartition("/")[::2] for known_path in KNOWN_ATTRIBUTES)  # (parent path, tag) of each
    possible = [known_tag for parent_path, known_tag in paths_and_tags if parent_path == path]
    if not possible:
        return "remove it."
    nearest = get_close_matches(tag, possible, n=1)
    return f"did you mean <{nearest[0]}>?" if nearest else f"remove it. Known here: {', '.join(possible)}."


def _unknown_attributes(element: Element, path: str) -> Iterator[tuple[Element, str]]:
    for child in element.children:
        child_path = _join(path, child.tag)
        known = KNOWN_ATTRIBUTES.get(child_path)
        if known is not None:
            yield from ((child, name) for name in child.attributes if name not in known)
            yield from _unknown_attributes(child, child_path)


def _join(path: str, tag: str) -> str:
    return f"{path}/{tag}" if path else tag
