"""The dashboard's files: content, requests, and headers for the browser."""

from __future__ import annotations

import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bruce_mp.status.pages.front_page import FILES, entry_of
from bruce_mp.telemetry.broker_status import RouterStatus
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "bruce_mp/status/static"
FAILED_ROUTER = RouterStatus((), NOW_MS - 5000, "Connection refused.", (), 0)


@pytest.mark.parametrize("path", FILES)
def test_each_file_is_served_unchanged(daemon: OfflineStatusPages, path: str) -> None:
    name, content_type = FILES[path]
    response = daemon.client.get(path)
    assert (response.status_code, response.content_type) == (200, content_type)
    assert response.get_data() == (STATIC / name).read_bytes()


def test_every_static_file_is_served() -> None:
    assert {name for name, _ in FILES.values()} == {path.name for path in STATIC.iterdir()}


@pytest.mark.parametrize("path", FILES)
def test_the_page_references_no_other_host(daemon: OfflineStatusPages, path: str) -> None:
    text = daemon.client.get(path).get_data(as_text=True).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)


def test_the_page_has_no_inline_code(daemon: OfflineStatusPages) -> None:
    html = daemon.client.get("/").get_data(as_text=True)
    assert not re.search(r"<script(?! src=)|<style|\son[a-z]+=|\sstyle=|javascript:", html)
    script = daemon.client.get("/page.js").get_data(as_text=True)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script)


@pytest.mark.parametrize("path", ["/", "/overview/json", "/healthz", "/nowhere"])
def test_the_content_security_policy_allows_only_own_files(daemon: OfflineStatusPages, path: str) -> None:
    policy = daemon.client.get(path).headers["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == rules["img-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert "unsafe" not in policy


def test_the_front_page_links_to_existing_pages(daemon: OfflineStatusPages) -> None:
    daemon.fetch_metadata(NOW_MS, NOW_MS)
    links = set(re.findall(r'(?:href|src)="([^"#]+)"', daemon.client.get("/").get_data(as_text=True)))
    assert {daemon.client.get(f"/{link}").status_code for link in links} == {200}
    rules = daemon.client.application.url_map.iter_rules()
    pages = {rule.rule for rule in rules if rule.rule.endswith(("/json", "/plain"))}
    assert pages <= {f"/{link}" for link in links}


# --- /operating -------------------------------------------------------------------------------------------------------
@pytest.mark.process
def test_the_page_operating_equals_the_rendered_documentation() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "render_operating.py")]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    how = "run: scripts/render_operating.py > bruce_mp/status/static/operating.html"
    assert (STATIC / "operating.html").read_text() == rendered, how


def test_links_inside_the_page_operating_have_a_target(daemon: OfflineStatusPages) -> None:
    html = daemon.client.get("/operating").get_data(as_text=True)
    anchors = re.findall(r'\sid="([^"]+)"', html)
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(anchors)


def test_each_problem_links_to_its_entry(daemon: OfflineStatusPages) -> None:
    daemon.broker_status.record([FAILED_ROUTER], NOW_MS)
    health = daemon.json("/overview/json")["health"]
    (problem,) = health["problems"]
    assert health["entries"] == {problem: "operating#no-broker-can-be-reached-for"}
    html = daemon.client.get("/operating").get_data(as_text=True)
    assert '<tr id="no-broker-can-be-reached-for" ' in html


@pytest.mark.parametrize(
    ("sentence", "entry"),
    [
        ("Broker 1 at x:9 has failed: No broker can be reached for all that.", "operating#has-failed"),
        ("17 messages were discarded within the last minute, BUG: ...", "operating#within-the-last-minute"),
        ("A sentence of tomorrow.", ""),
    ],
)
def test_the_first_known_part_of_a_sentence_chooses_the_entry(sentence: str, entry: str) -> None:
    assert entry_of(sentence) == entry


def test_an_installation_contains_the_static_files() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["bruce_mp.status"].split(", ")
    installed = {path for pattern in patterns for path in (ROOT / "bruce_mp/status").glob(pattern)}
    assert installed >= set(STATIC.iterdir())
