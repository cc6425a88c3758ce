"""The dashboard's files: content, requests, and headers for the browser."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bruce_mp.status.pages.front_page import FILES
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "bruce_mp/status/static"


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


def test_an_installation_contains_the_static_files() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["bruce_mp.status"].split(", ")
    installed = {path for pattern in patterns for path in (ROOT / "bruce_mp/status").glob(pattern)}
    assert installed >= set(STATIC.iterdir())
