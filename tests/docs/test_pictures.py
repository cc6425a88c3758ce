"""The pictures of the documentation are current, and show in both colour schemes without other files."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import pytest

from support.doc_pages import PAGES, ROOT
from support.processes import run_program

if TYPE_CHECKING:
    from pathlib import Path

PICTURES: Final = sorted((ROOT / "docs" / "images").glob("*.svg"))
CHARTS: Final = {"cpu-per-message.svg": [], "application-and-daemon.svg": ["applications"]}
"""Charts of recorded figures, with the arguments of `scripts/draw_chart.py`."""


@pytest.mark.process
@pytest.mark.parametrize("name", CHARTS)
def test_chart_equals_the_drawing_of_the_recorded_figures(name: str) -> None:
    drawn = run_program(sys.executable, ROOT / "scripts" / "draw_chart.py", *CHARTS[name], time_limit_s=60)
    chart = ROOT / "docs" / "images" / name
    assert chart.read_text() == drawn, f"run: scripts/draw_chart.py {' '.join(CHARTS[name])} > docs/images/{name}"


def test_the_picture_of_applications_stacks_application_and_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    chart = import_module("draw_chart")
    loads = {name: {"application_us": 0.5, "daemon_us": 1.5, "total_us": 2.0} for name in ("100B", "1KB", "10KB")}
    direct = {name: {"application_us": 4.0, "daemon_us": 0.0, "total_us": 4.0} for name in loads}
    figures = {"Python stream": loads, "librdkafka": direct}
    machine = {"commit": "abc", "repetitions": 5, "cores": 2, "date": "2031-05-17"}
    (tmp_path / "applications.json").write_text(json.dumps({"machine": machine, "figures": figures}))
    monkeypatch.setattr(chart, "RECORDED", tmp_path)
    drawn = ET.fromstring(chart.render_applications())
    bars = [(bar.get("class"), bar.get("width")) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert bars == [("ours", "210.0"), ("own", "52.5"), ("other", "420.0")] * 3


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
