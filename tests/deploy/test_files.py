"""Checks of the files below deploy/ that need none of their programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from bruce_mp.config.load import load_config
from bruce_mp.config.sections import Delivery
from bruce_mp.supervisor.sockets.datagram_limits import MIN_QUEUE_LENGTH

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
UNIT: Final = DEPLOY / "systemd" / "bruce.service"
SOCKET_UNIT: Final = DEPLOY / "systemd" / "bruce.socket"
HOLD_UNIT: Final = DEPLOY / "systemd" / "bruce-hold.service"


def setting(text: str, name: str) -> str:
    found = re.search(rf"^{name} ?= ?(.*)$", text, re.MULTILINE)
    assert found, name
    return found[1]


@pytest.mark.process
def test_systemd_analyze_accepts_the_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in (UNIT, SOCKET_UNIT, HOLD_UNIT):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/bruce/bin/bruce", "/bin/true"))
    units = [tmp_path / unit.name for unit in (UNIT, SOCKET_UNIT, HOLD_UNIT)]
    told = subprocess.run([verify, "verify", *units], capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def test_every_service_manager_waits_for_the_end_of_a_shutdown() -> None:
    least = Delivery().shutdown_max_delay_ms / 1000 + 10
    waits = (
        setting(UNIT.read_text(), "TimeoutStopSec"),
        setting((DEPLOY / "supervisord" / "bruce.conf").read_text(), "stopwaitsecs"),
        re.findall(r"--stop-timeout=(\d+)", (DEPLOY / "container" / "Containerfile").read_text())[0],
    )
    assert [wait for wait in waits if int(wait) <= least] == []


def test_the_packaged_configuration_fits_the_unit() -> None:
    config = load_config(DEPLOY / "debian" / "bruce.toml")
    home = Path("/run") / setting(UNIT.read_text(), "RuntimeDirectory")
    assert Path(config.daemon.run_dir).parent == home
    assert Path(config.input.unix_datagram.path).parent == home


def test_the_socket_unit_matches_the_packaged_configuration() -> None:
    config = load_config(DEPLOY / "debian" / "bruce.toml").input.unix_datagram
    unit = SOCKET_UNIT.read_text()
    assert setting(unit, "ListenDatagram") == config.path
    assert int(setting(unit, "SocketMode"), 8) == config.mode


def test_the_runtime_directory_survives_the_service() -> None:
    for unit in (UNIT, HOLD_UNIT):
        assert setting(unit.read_text(), "RuntimeDirectoryPreserve") == "yes"


def test_the_sysctl_setting_matches_the_daemons_advice() -> None:
    text = (DEPLOY / "sysctl.d" / "60-bruce.conf").read_text()
    assert setting(text, "net.unix.max_dgram_qlen") == str(MIN_QUEUE_LENGTH)


@pytest.mark.process
@pytest.mark.parametrize("script", ["build", "postinst", "prerm", "postrm"])
def test_package_scripts_are_executable_and_have_valid_syntax(script: str) -> None:
    path = DEPLOY / "debian" / script
    assert path.stat().st_mode & 0o111 == 0o111
    shell = path.read_text().splitlines()[0].removeprefix("#!")
    subprocess.run([shell, "-n", path], timeout=10, check=True)


def test_the_package_removes_the_slab_of_its_configuration() -> None:
    slab = load_config(DEPLOY / "debian" / "bruce.toml").slab_path
    assert slab in (DEPLOY / "debian" / "postrm").read_text()


def test_the_dashboard_is_json() -> None:
    assert json.loads((DEPLOY / "grafana" / "bruce.json").read_text())["title"] == "bruce"
