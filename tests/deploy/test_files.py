"""Checks of the files below deploy/ that need none of their programs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from threading import Thread
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.config.load import load_config
from bruce_mp.config.sections import Delivery
from bruce_mp.supervisor.sockets.datagram_limits import MIN_QUEUE_LENGTH
from support.processes import run_program, time_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
UNIT: Final = DEPLOY / "systemd" / "bruce.service"
SOCKET_UNIT: Final = DEPLOY / "systemd" / "bruce.socket"
HOLD_UNIT: Final = DEPLOY / "systemd" / "bruce-hold.service"
TEMPLATES: Final = {
    UNIT: DEPLOY / "systemd" / "bruce@.service",
    HOLD_UNIT: DEPLOY / "systemd" / "bruce-hold@.service",
}
CONTAINERFILE: Final = DEPLOY / "container" / "Containerfile"
KUBERNETES: Final = DEPLOY / "kubernetes" / "bruce.yaml"
OPERATING: Final = DEPLOY.parent / "docs" / "operating.md"
LIBRARY_USER: Final = """
import mmap, sys
from setproctitle import setproctitle
setproctitle(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""
NO_USER: Final = 60123
"""Number of a user without processes."""


def setting(text: str, name: str) -> str:
    found = re.search(rf"^{name} ?= ?(.*)$", text, re.MULTILINE)
    assert found, name
    return found[1]


@pytest.mark.process
def test_systemd_analyze_accepts_the_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    names = {unit: unit.name.replace("@", "@east") for unit in (UNIT, SOCKET_UNIT, HOLD_UNIT, *TEMPLATES.values())}
    for unit, name in names.items():
        (tmp_path / name).write_text(unit.read_text().replace("/opt/bruce/bin/bruce", "/bin/true"))
    units = [tmp_path / name for name in names.values()]
    assert run_program(verify, "verify", *units, time_limit_s=60) == ""


@pytest.mark.process
@pytest.mark.parametrize("command", ["check", "test"])
def test_promtool_accepts_the_alert_rules(tmp_path: Path, command: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    files = {"check": DEPLOY / "prometheus" / "bruce.rules.yml", "test": Path(__file__).with_name("alerts.test.yml")}
    for path in files.values():
        shutil.copy(path, tmp_path)
    run_program(promtool, command, "rules", tmp_path / files[command].name, time_limit_s=60)


def test_every_service_manager_waits_for_the_end_of_a_shutdown() -> None:
    least = Delivery().shutdown_max_delay_ms / 1000 + 10
    waits = (
        setting(UNIT.read_text(), "TimeoutStopSec"),
        setting((DEPLOY / "supervisord" / "bruce.conf").read_text(), "stopwaitsecs"),
        re.findall(r"--stop-timeout=(\d+)", CONTAINERFILE.read_text())[0],
        re.findall(r"terminationGracePeriodSeconds: (\d+)", KUBERNETES.read_text())[0],
    )
    assert [wait for wait in waits if int(wait) <= least] == []


@pytest.mark.parametrize("name", ["LogsDirectory", "LogsDirectoryMode"])
def test_bruce_hold_may_write_the_log_of_the_daemon(name: str) -> None:
    assert setting(HOLD_UNIT.read_text(), name) == setting(UNIT.read_text(), name)


def test_the_rotation_of_the_log_needs_no_service_manager() -> None:
    """The daemon needs no signal, and a rotation would fail with a service manager that does not know the daemon."""
    assert "postrotate" not in (DEPLOY / "logrotate" / "bruce").read_text()


def settings_of_unit(unit: Path) -> list[str]:
    return [line for line in unit.read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("unit", TEMPLATES, ids=lambda unit: unit.stem)
def test_the_template_unit_differs_only_in_the_names_of_its_instance(unit: Path) -> None:
    own = [line for line in settings_of_unit(unit) if not line.startswith("Conflicts=")]
    renamed = [re.sub(r"/etc/bruce/bruce|Directory=bruce$", r"\g<0>@", line) for line in own]
    expected = [line.replace("bruce/bruce@", "bruce/%i").replace("=bruce@", "=bruce/%i") for line in renamed]
    described = [line.replace("Description=bruce", "Description=bruce %i") for line in expected]
    assert settings_of_unit(TEMPLATES[unit]) == described


@pytest.mark.process
def test_the_documented_command_adapts_the_programs_of_supervisord_to_a_cluster() -> None:
    command = re.search(r"^sed (.*?) *\\\n *deploy/supervisord/bruce.conf", OPERATING.read_text(), re.MULTILINE)
    assert command is not None
    source = DEPLOY / "supervisord" / "bruce.conf"
    adapted = ConfigParser(interpolation=None, inline_comment_prefixes=";")
    adapted.read_string(run_program("sed", *shlex.split(command[1]), source, time_limit_s=10))
    assert adapted.sections() == ["program:bruce-east", "program:bruce-east-hold"]
    for name in adapted.sections():
        assert adapted[name]["command"].endswith(" --config /etc/bruce/east.toml")
        assert adapted[name]["stdout_logfile"].startswith("/var/log/bruce/east/")


def test_the_document_names_the_programs_of_a_group_as_supervisord_does() -> None:
    text = OPERATING.read_text()
    group = re.search(r"\[group:(\w+)\]\\nprograms = (\S+)\\n'", text)
    assert group is not None
    names = [f"`{group[1]}:{program}`" for program in (*group[2].split(","), "*")]
    assert [name for name in names if name not in text] == []


def test_the_manifest_for_kubernetes_has_a_configuration_that_fits_its_mounts(tmp_path: Path) -> None:
    text = KUBERNETES.read_text()
    block = re.search(r"^  bruce\.toml: \|\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    assert block is not None
    (tmp_path / "bruce.toml").write_text(dedent(block[1]))
    config = load_config(tmp_path / "bruce.toml")
    mounts = set(re.findall(r"mountPath: ([\w/-]+)", text))
    assert {str(Path(config.input.unix_datagram.path).parent), str(Path(config.slab_path).parent)} <= mounts
    assert config.http.listen.endswith(":" + re.findall(r"containerPort: (\d+)", text)[0])


def test_the_container_has_a_configuration_that_fits_its_mounts_and_its_health_check() -> None:
    text = CONTAINERFILE.read_text()
    config = load_config(CONTAINERFILE.with_name("bruce.toml"))
    mounts = set(re.findall(r"-v \S+?:([\w/-]+)", text))
    assert {str(Path(config.input.unix_datagram.path).parent), str(Path(config.slab_path).parent)} <= mounts
    assert config.http.listen.endswith(":" + re.findall(r"http://127\.0\.0\.1:(\d+)", text)[0])


@pytest.mark.process
def test_helm_makes_the_manifest_for_kubernetes_of_the_chart() -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed")
    chart = KUBERNETES.with_name("bruce")
    run_program(helm, "lint", "--strict", chart, time_limit_s=60)
    made = subprocess.run([helm, "template", "bruce", chart], capture_output=True, text=True, timeout=60, check=True)
    assert KUBERNETES.read_text().partition("---\n")[2] == made.stdout.partition("---\n")[2]


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
def test_the_sockets_have_a_directory_after_a_reboot(tmp_path: Path) -> None:
    create = shutil.which("systemd-tmpfiles")
    if create is None:
        pytest.skip("systemd-tmpfiles is not installed")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text(f"bruce:x:{os.getuid()}:{os.getgid()}::/:/bin/false\n")
    (tmp_path / "etc" / "group").write_text(f"bruce:x:{os.getgid()}:\n")
    config = load_config(DEPLOY / "debian" / "bruce.toml")
    run_program(create, f"--root={tmp_path}", "--create", DEPLOY / "tmpfiles.d" / "bruce.conf", time_limit_s=10)
    parents = {Path(path).parent for path in (config.input.unix_datagram.path, config.daemon.run_dir)}
    modes = [(tmp_path / parent.relative_to("/")).stat().st_mode & 0o777 for parent in parents]
    assert modes == [0o755]


def test_the_packages_create_the_directory_of_the_sockets() -> None:
    file = "usr/lib/tmpfiles.d/bruce.conf"
    assert f'"$here/tmpfiles.d/bruce.conf" "$stage/{file}"' in (DEPLOY / "stage").read_text()
    assert f"\n/{file}\n" in (DEPLOY / "rpm" / "bruce.spec").read_text()
    for script in ("debian/postinst", "rpm/bruce.spec"):
        assert "[ -d /run/bruce ] || install -d -o bruce -g bruce /run/bruce\n" in (DEPLOY / script).read_text()


@pytest.mark.process
@pytest.mark.parametrize(
    "script",
    [
        "lock",
        "pip",
        "stage",
        "services",
        "debian/build",
        "debian/postinst",
        "debian/prerm",
        "debian/postrm",
        "rpm/build",
    ],
)
def test_package_scripts_are_executable_and_have_valid_syntax(script: str) -> None:
    path = DEPLOY / script
    assert path.stat().st_mode & 0o111 == 0o111
    shell = path.read_text().splitlines()[0].removeprefix("#!")
    run_program(shell, "-n", path, time_limit_s=10)


@pytest.mark.process
@pytest.mark.parametrize(
    ("word", "calls"),
    [
        ("upgrade", ["bruce upgrade --config /etc/bruce/bruce.toml", "bruce upgrade --config /etc/bruce/east.toml"]),
        (
            "stop",
            [
                "systemctl --no-reload disable --now bruce-hold.service bruce.socket bruce.service",
                "systemctl --no-reload disable --now bruce.service",
                "systemctl --no-reload disable --now bruce@east.service",
            ],
        ),
    ],
)
def test_the_packages_upgrade_and_stop_each_daemon(tmp_path: Path, word: str, calls: list[str]) -> None:
    """Programs that record their calls stand in for systemctl, which lists two units, and for bruce."""
    record = f'echo "$(basename $0) $*" >> {tmp_path}/calls\n'
    listing = 'if [ "$1" = list-units ]; then printf "%s loaded\\n" bruce.service bruce@east.service; exit; fi\n'
    commands = {"systemctl": listing + record, "bruce": record + "exit 1\n"}
    done = run_services(tmp_path, word, with_systemd=True, commands=commands)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == calls
    refused = ["bruce.service", "bruce@east.service"] if word == "upgrade" else []
    assert done.stdout.splitlines() == [f"bruce: solve that, then run: systemctl restart {unit}" for unit in refused]


def run_services(
    place: Path, word: str, *, with_systemd: bool, commands: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the packages' script of services in a directory like /opt/bruce; `commands` are scripts by name."""
    for name in ("bin", "lib"):
        (place / name).mkdir(exist_ok=True)
    for name, script in (commands or {}).items():
        add_command(place / "bin", name, script)
    services = shutil.copy(DEPLOY / "services", place / "bin")
    env = {"PATH": f"{place}/bin:/usr/bin:/bin", "SYSTEMD_DIR": str(place if with_systemd else place / "absent")}
    return subprocess.run(
        [services, word], env=env, capture_output=True, text=True, timeout=time_limit(10), check=False
    )


def add_command(directory: Path, name: str, script: str) -> None:
    """Write an executable shell script."""
    path = directory / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


@contextmanager
def process_with(title: str, library: Path) -> Iterator[int]:
    """Run a process with a title that has mapped a library, and return its pid."""
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(bytes(4096))
    command = [sys.executable, "-c", LIBRARY_USER, title, str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate()


@pytest.mark.process
@pytest.mark.parametrize("title", ["bruce: supervisor", "bruce: hold"])
@pytest.mark.parametrize("with_systemd", [False, True])
def test_the_packages_refuse_their_removal_while_a_daemon_runs_their_code(
    tmp_path: Path, title: str, *, with_systemd: bool
) -> None:
    def stop() -> tuple[int, str]:
        done = run_services(tmp_path, "stop", with_systemd=with_systemd, commands={"systemctl": "exit 0\n"})
        return done.returncode, done.stderr

    with process_with(title, tmp_path / "lib" / "library.so") as pid:
        remedy = "stop it first, such as with supervisorctl stop bruce-hold bruce"
        assert stop() == (1, f"bruce: a daemon runs (pid {pid}): {remedy}\n")
    with process_with(title, tmp_path / "other" / "library.so"), process_with("bruce", tmp_path / "lib" / "library.so"):
        assert stop() == (0, "")


@pytest.mark.process
def test_the_packages_do_not_name_a_daemon_that_ends_meanwhile(tmp_path: Path) -> None:
    """A grep stands in that ends the daemon before its maps are read."""
    with process_with("bruce: supervisor", tmp_path / "lib" / "library.so") as pid:
        end = f"kill {pid}; while [ -e /proc/{pid} ]; do sleep 0.01; done"
        grep = f'case "$*" in */{pid}/maps) {end};; esac\nexec /usr/bin/grep "$@"\n'
        reaper = Thread(target=os.waitpid, args=(pid, 0))
        reaper.start()
        done = run_services(tmp_path, "stop", with_systemd=False, commands={"grep": grep})
        reaper.join()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_the_packages_name_the_command_that_upgrades_a_daemon_without_systemd(tmp_path: Path) -> None:
    assert run_services(tmp_path, "upgrade", with_systemd=False).stdout == ""
    with process_with("bruce: supervisor", tmp_path / "lib" / "library.so"):
        done = run_services(tmp_path, "upgrade", with_systemd=False)
    assert (done.returncode, done.stdout) == (
        0,
        "bruce: a running daemon has the old version until you run: bruce upgrade --config /etc/bruce/bruce.toml\n",
    )


@pytest.mark.process
def test_the_packages_name_the_steps_that_systemd_would_do(tmp_path: Path) -> None:
    done = run_services(tmp_path, "welcome", with_systemd=False)
    said = done.stdout.splitlines()
    assert "bruce: apply /etc/sysctl.d/60-bruce.conf: sysctl --system" in said
    assert "bruce: at each boot, run: install -d -o bruce -g bruce /run/bruce" in said
    assert not any("systemctl" in line for line in said)
    assert "systemctl enable --now" in run_services(tmp_path, "welcome", with_systemd=True).stdout


@pytest.mark.process
@pytest.mark.parametrize(("user", "status"), [(os.getuid(), 1), (NO_USER, 0)], ids=["running", "ended"])
def test_a_purge_deletes_no_messages_while_a_process_of_the_user_runs(tmp_path: Path, user: int, status: int) -> None:
    """The script works below a directory, with commands that accept any user."""
    script = (DEPLOY / "debian" / "postrm").read_text().replace("-user bruce", f"-user {user}")
    adapted = re.sub(r"(?<= )/(?=(?:var|run|dev/shm)/)", f"{tmp_path}/", script)
    add_command(tmp_path, "postrm", adapted)
    for name in ("getent", "userdel"):
        add_command(tmp_path, name, "exit 0\n")
    slab = tmp_path / "dev" / "shm" / "bruce-run-bruce-private.slab"
    slab.parent.mkdir(parents=True)
    slab.touch()
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [tmp_path / "postrm", "purge"], env=env, capture_output=True, text=True, timeout=time_limit(10), check=False
    )
    assert (done.returncode, slab.exists()) == (status, bool(status)), done.stderr
    assert ("runs: stop it first, such as with supervisorctl stop bruce" in done.stderr) == bool(status)


def test_the_package_removes_the_slab_of_its_configuration() -> None:
    slab = load_config(DEPLOY / "debian" / "bruce.toml").slab_path
    assert slab in (DEPLOY / "debian" / "postrm").read_text()


def test_the_dashboard_is_json() -> None:
    assert json.loads((DEPLOY / "grafana" / "bruce.json").read_text())["title"] == "bruce"
