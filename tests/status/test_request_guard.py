"""State-changing requests: allowed origins, and tokens."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from bruce_mp.config.sections import Http
from bruce_mp.telemetry.broker_status import RouterStatus
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from werkzeug.test import TestResponse

    from support.status_pages import OfflineStatusPages

CHANGES = (
    ("POST", "/metadata_update"),
    ("POST", "/msg_debug/add_topic/news"),
    ("GET", "/msg_debug/add_topic/news"),
    ("GET", "/msg_debug/del_topic/news"),
    ("GET", "/msg_debug/add_all_topics"),
    ("GET", "/msg_debug/del_all_topics"),
    ("GET", "/msg_debug/truncate_files"),
)
REFUSED = (*CHANGES, ("POST", "/reload"), ("POST", "/reload?check=1"), ("POST", "/accept_cluster?id=b"))
NODE = os.uname().nodename


def ask(
    daemon: OfflineStatusPages, headers: Mapping[str, str], method: str = "POST", path: str = "/metadata_update"
) -> TestResponse:
    return daemon.client.open(path, method=method, headers={"Host": "127.0.0.1:9090", **headers})


def configure(daemon: OfflineStatusPages, http: Http) -> None:
    daemon.config = replace(daemon.config, http=http)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost:9090"},
        {"Host": "LOCALHOST."},
        {"Host": "[::1]:9090"},
        {"Host": "192.0.2.7"},
        {"Host": NODE},
        {"Host": "pages.example:80"},
        {"Origin": "http://127.0.0.1:9090"},
        {"Host": "pages.example", "Origin": "https://pages.example"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_same_origin_and_non_browser_requests_are_served(daemon: OfflineStatusPages, headers: dict[str, str]) -> None:
    configure(daemon, Http(listen="pages.example:9090"))
    assert ask(daemon, headers).status_code == 200
    assert daemon.refreshes == 1


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Origin": "http://evil.example"}, "other sites"),
        ({"Origin": "http://127.0.0.1:8080"}, "other sites"),
        ({"Origin": "null"}, "other sites"),
        ({"Origin": "http://["}, "other sites"),
        ({"Sec-Fetch-Site": "cross-site"}, "other sites"),
        ({"Sec-Fetch-Site": "same-site"}, "other sites"),
        ({"Host": "evil.example:9090"}, "evil.example is not a name of this host"),
        (
            {"Host": "evil.example:9090", "Origin": "http://evil.example:9090"},
            "evil.example is not a name of this host",
        ),
        ({"Host": "127.0.0.1.evil.example"}, "is not a name of this host"),
    ],
)
def test_cross_site_browser_requests_are_refused(
    daemon: OfflineStatusPages, headers: dict[str, str], words: str
) -> None:
    for method, path in REFUSED:
        answer = ask(daemon, headers, method, path)
        assert answer.status_code == 403, path
        assert words in answer.get_data(as_text=True)
    assert (daemon.refreshes, daemon.announced, daemon.reload_requests) == (0, [], [])


PAGES = ("/", "/books/json", "/healthz", "/msg_debug/get_topics", "/metrics")


def test_reading_needs_no_token(daemon: OfflineStatusPages) -> None:
    configure(daemon, Http(token_file="/nowhere"))
    for path in PAGES:
        assert ask(daemon, {"Origin": "http://evil.example"}, "GET", path).status_code in {200, 503}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9090", "127.0.0.1.evil.example", "["])
def test_reading_is_refused_when_the_host_is_foreign(daemon: OfflineStatusPages, host: str) -> None:
    for path in PAGES:
        answer = ask(daemon, {"Host": host}, "GET", path)
        assert answer.status_code == 403, path
        assert "add it to http.allowed_hosts" in answer.get_data(as_text=True)


@pytest.mark.parametrize("host", ["Proxy.example", "proxy.example:443", "proxy.example."])
def test_reading_is_allowed_when_the_host_is_configured(daemon: OfflineStatusPages, host: str) -> None:
    configure(daemon, Http(allowed_hosts=("proxy.Example",)))
    assert ask(daemon, {"Host": host}, "GET", "/books/json").status_code == 200


def test_the_host_header_is_ignored_on_a_unix_socket(daemon: OfflineStatusPages) -> None:
    configure(daemon, Http(listen="unix:/run/bruce.http"))
    assert ask(daemon, {"Host": "behind.a.proxy"}).status_code == 200
    assert ask(daemon, {"Host": "behind.a.proxy", "Origin": "http://evil.example"}).status_code == 403


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("sesame\n")
    return path


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesame1", "Basic c2VzYW1l", "sesame"]
)
def test_changes_without_the_token_are_refused(daemon: OfflineStatusPages, token_file: Path, given: str | None) -> None:
    configure(daemon, Http(token_file=str(token_file)))
    for method, path in REFUSED:
        answer = ask(daemon, {} if given is None else {"Authorization": given}, method, path)
        assert answer.status_code == 401, path
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert "Authorization: Bearer TOKEN" in answer.get_data(as_text=True)
    assert (daemon.refreshes, daemon.announced, daemon.reload_requests) == (0, [], [])


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changes_with_the_token_are_done(daemon: OfflineStatusPages, token_file: Path, method: str, path: str) -> None:
    configure(daemon, Http(token_file=str(token_file)))
    assert ask(daemon, {"Authorization": "Bearer sesame"}, method, path).status_code == 200
    token_file.write_text("another\n")
    assert ask(daemon, {"Authorization": "Bearer sesame"}, method, path).status_code == 401
    assert ask(daemon, {"Authorization": "Bearer another"}, method, path).status_code == 200


def test_the_token_can_come_from_the_environment(daemon: OfflineStatusPages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_VARIABLE", "sesame")
    configure(daemon, Http(token_env="THE_VARIABLE"))
    assert ask(daemon, {"Authorization": "Bearer sesame"}).status_code == 200
    assert ask(daemon, {}).status_code == 401


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_an_unreadable_token_refuses_every_change(daemon: OfflineStatusPages, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    configure(daemon, Http(token_file=str(file)))
    headers: dict[str, str]
    for headers in ({}, {"Authorization": "Bearer "}):
        answer = ask(daemon, headers)
        assert answer.status_code == 503
        assert str(file) in answer.get_data(as_text=True)
    assert daemon.refreshes == 0


def test_a_step_of_the_wall_clock_does_not_hide_the_other_cluster(daemon: OfflineStatusPages) -> None:
    router = RouterStatus((), NOW_MS, "another cluster", (), 0, foreign_cluster="b")
    daemon.broker_status.record([router], daemon.steady_ms)
    daemon.now_ms += 3_600_000
    answer = daemon.client.post("/accept_cluster?id=a")
    assert (answer.status_code, "belong to the cluster b" in answer.get_data(as_text=True)) == (409, True)


def test_the_cluster_is_unknown_without_a_report_of_the_router(daemon: OfflineStatusPages) -> None:
    answer = daemon.client.post("/accept_cluster?id=b")
    assert (answer.status_code, daemon.accepted_clusters) == (503, [])
