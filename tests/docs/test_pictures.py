"""The pictures of the documentation are current, and show in both colour schemes without other files."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import pytest

from support.doc_pages import PAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PICTURES: Final = sorted((ROOT / "docs" / "images").glob("*.svg"))
CHART: Final = ROOT / "docs" / "images" / "cpu-per-message.svg"


@pytest.mark.process
def test_chart_equals_the_drawing_of_the_recorded_figures() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "draw_chart.py")]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert CHART.read_text() == drawn, "run: scripts/draw_chart.py > docs/images/cpu-per-message.svg"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_picture_has_both_colour_schemes_and_no_outside_reference(picture: Path) -> None:
    text = picture.read_text()
    assert "prefers-color-scheme: dark" in text
    attributes = [value for element in ET.fromstring(text).iter() for value in element.attrib.values()]
    assert [value for value in attributes if "//" in value] == []
    assert "@import" not in text


def test_every_picture_is_on_a_page() -> None:
    shown = "".join(page.read_text() for page in PAGES)
    images = [path.name for path in (ROOT / "docs" / "images").iterdir()]
    assert [name for name in images if f"images/{name})" not in shown] == []
