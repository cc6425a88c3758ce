"""The page `/reload`, and the configuration in force on other pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.ipc.control_messages import ActiveConfig, ReloadOutcome, ReloadRequest
from bruce_mp.status.pages.reload import ReloadRequests
from support.status_pages import STARTED_MS

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages


@pytest.mark.parametrize(
    ("path", "only_check", "accepted", "status"),
    [("/reload", False, True, 200), ("/reload", False, False, 409), ("/reload?check=1", True, True, 200)],
)
def test_reload_returns_the_supervisors_answer(
    daemon: OfflineStatusPages, path: str, only_check: bool, accepted: bool, status: int
) -> None:
    def supervisor(request: ReloadRequest) -> None:
        daemon.reload_requests.append(request)
        daemon.reloads.on_outcome(ReloadOutcome(request.number - 1, accepted=not accepted, text="Somebody else's."))
        daemon.reloads.on_outcome(ReloadOutcome(request.number, accepted=accepted, text="It is so."))

    daemon.reloads._send = supervisor
    response = daemon.client.post(path)
    assert (response.status_code, response.get_data(as_text=True)) == (status, "It is so.\n")
    assert [request.only_check for request in daemon.reload_requests] == [only_check]


def test_a_reload_times_out_when_the_supervisor_does_not_answer() -> None:
    desk = ReloadRequests(lambda _: None)
    assert desk.request(only_check=False, timeout_s=0.01) is None
    assert not desk._waiting


def test_get_and_cross_site_requests_do_not_reload(daemon: OfflineStatusPages) -> None:
    assert daemon.client.get("/reload").status_code == 405
    assert daemon.client.post("/reload", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert daemon.reload_requests == []


def test_server_info_describes_the_active_configuration(daemon: OfflineStatusPages) -> None:
    daemon.active_config = ActiveConfig("/etc/bruce.toml", STARTED_MS, 3, "slab.size.", STARTED_MS)
    page = daemon.json("/server_info/json")
    assert {key: value for key, value in page.items() if key.startswith("config")} == {
        "config_file": "/etc/bruce.toml",
        "config_since": STARTED_MS // 1000,
        "config_reloads": 3,
        "config_refused": "slab.size.",
    }
    lines = daemon.text("/server_info/plain").splitlines()
    assert "config_file: /etc/bruce.toml" in lines
    assert "config_refused: slab.size." in lines


def test_a_refused_reload_is_a_warning_until_one_is_applied(daemon: OfflineStatusPages) -> None:
    def warnings() -> list[str]:
        found: list[str] = daemon.client.get("/healthz").get_json()["warnings"]
        return [text for text in found if "reload" in text]

    assert warnings() == []
    daemon.active_config = ActiveConfig("/etc/bruce.toml", STARTED_MS, 3, "slab.size is another.", STARTED_MS)
    (text,) = warnings()
    assert "was refused: slab.size is another. The old configuration stays in force. Correct /etc/bruce.toml" in text
    daemon.active_config = ActiveConfig("/etc/bruce.toml", STARTED_MS, 4)
    assert warnings() == []
