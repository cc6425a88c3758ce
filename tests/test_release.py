"""The files of a release: their bytes, their versions, and the list of their libraries."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from bruce_mp import __version__
from support.processes import run_program

if TYPE_CHECKING:
    from types import ModuleType

ROOT: Final = Path(__file__).parents[1]
KERNELS: Final = {path.stem for path in (ROOT / "bruce_mp").rglob("kernels/compiled/*.pyx")}
MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""ELF's numbers of the architectures."""
PACKAGES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of the architectures."""
EPOCH: Final = 1_700_000_000
RELEASE_S: Final = 1500
VERSIONS: Final = {
    "clients/c/include/bruce.h": r'^#define BRUCE_VERSION "(.*)"',
    "clients/java/pom.xml": r"^  <version>(.*)</version>",
    "clients/node/package.json": r'^  "version": "(.*)"',
    "clients/php/Bruce.php": r"^const VERSION = '(.*)'",
    "clients/ruby/bruce.rb": r"^  VERSION = '(.*)'",
    "clients/rust/Cargo.toml": r'^version = "(.*)"',
    "clients/rust/Cargo.lock": r'name = "bruce-client"\nversion = "(.*)"',
    "deploy/kubernetes/bruce/Chart.yaml": r"^(?:version|appVersion): (.*)",
    "deploy/kubernetes/bruce/values.yaml": r"^image: bruce:(.*)",
    "docs/operating.md": r"example.com/bruce:(\S+)",
}
"""The other places with the version, which their tools read."""


def script(name: str) -> ModuleType:
    """Import a module of scripts/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return import_module(name)


# --- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VERSIONS)
def test_each_file_with_a_version_has_that_of_the_package(name: str) -> None:
    found = re.findall(VERSIONS[name], (ROOT / name).read_text(), re.MULTILINE)
    assert found == [__version__] * (2 if name.endswith("Chart.yaml") else 1)


def test_the_changelog_describes_the_version_and_those_before() -> None:
    headings = re.findall(r"^## \[(.*?)\](?: - \d{4}-\d\d-\d\d)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", __version__]
    assert headings[-1] == "0.1.0"


def test_the_changelog_supports_the_interpreters_of_the_metadata() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    supported = re.findall(r"Python :: (3\.\d+)", config["metadata"]["classifiers"])
    assert f"| CPython {', '.join(supported)} |" in (ROOT / "CHANGELOG.md").read_text()


def test_the_locked_libraries_fit_the_requirements_of_the_package() -> None:
    config = ConfigParser(inline_comment_prefixes="#")
    config.read(ROOT / "setup.cfg")
    required = (config["options"]["install_requires"] + config["options.extras_require"]["top"]).split("\n")
    locked = dict(
        re.findall(r"^(\S+)==(\S+) ", (ROOT / "deploy" / "requirements.txt").read_text(), re.MULTILINE),
    )
    misfits = [
        line
        for line in filter(None, required)
        if not (wanted := Requirement(line)).specifier.contains(locked.get(wanted.name, "none"))
    ]
    assert misfits == []


# --- archives --------------------------------------------------------------------------------------------------------


def make_chart(directory: Path, *names: str) -> Path:
    """Create the files of a chart in this order."""
    chart = directory / "bruce"
    for name in names:
        (chart / name).parent.mkdir(parents=True, exist_ok=True)
        (chart / name).write_text(f"version: 1.2.3\nname: {name}\n")
    return chart


def test_an_archive_depends_on_names_and_contents_only(tmp_path: Path) -> None:
    archive = script("release_archive")
    written = []
    names = ("Chart.yaml", "templates/a.yaml", "templates/b.yaml")
    for number, order in enumerate((names, names[::-1])):
        chart = make_chart(tmp_path / str(number), *order)
        for path in chart.rglob("*.yaml"):
            path.chmod(0o600 if number else 0o664)
            os.utime(path, (number, number))
        target = tmp_path / f"{number}.tgz"
        archive.write_archive(target, archive.members_of_chart(chart), EPOCH)
        written.append(target.read_bytes())
    assert written[0] == written[1]
    with tarfile.open(tmp_path / "0.tgz") as packed:
        found = [(each.name, each.mode, each.mtime, each.uid, each.uname) for each in packed]
    assert found == [(f"bruce/{name}", 0o644, EPOCH, 0, "") for name in names]


def test_an_archive_of_an_archive_keeps_contents_and_execute_bits(tmp_path: Path) -> None:
    archive = script("release_archive")
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    members = [archive.Member("x/b", b"2", True), archive.Member("x/a", b"1", False)]
    archive.write_archive(first, members, 7)
    archive.write_archive(second, archive.members_of_archive(first), EPOCH)
    assert list(archive.members_of_archive(second)) == sorted(members)


def test_the_archive_of_the_chart_has_the_name_that_helm_expects(tmp_path: Path) -> None:
    assert script("release_archive").chart_archive_name(make_chart(tmp_path, "Chart.yaml")) == "bruce-1.2.3.tgz"


# --- the list of libraries -------------------------------------------------------------------------------------------
ALPHA: Final = "Name: Alpha\nVersion: 1.0\nLicense: MIT\nRequires-Dist: beta\n"
METADATA: Final = {
    "bruce_mp-1.2.3-cp311-abi3-manylinux_2_28_x86_64.whl": (
        "Name: bruce-mp\nVersion: 1.2.3\nLicense-Expression: Apache-2.0\nRequires-Dist: alpha>=1\n"
        'Requires-Dist: beta; extra == "top"\nRequires-Dist: gamma; extra == "test"\n'
    ),
    "alpha-1.0-cp311-cp311-manylinux_2_28_x86_64.whl": ALPHA,
    "alpha-1.0-cp311-cp311-manylinux_2_28_aarch64.whl": ALPHA,
    "beta-2.0-py3-none-any.whl": (
        "Name: beta\nVersion: 2.0\nLicense: The text of a licence,\n        which is long\n"
        "Classifier: License :: OSI Approved :: BSD License\n"
    ),
}


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    """Write the list of the libraries above into a directory, and return the directory."""
    libraries, target = tmp_path / "libraries", tmp_path / "target"
    for name, metadata in METADATA.items():
        directory = target if name.startswith("bruce") else libraries
        directory.mkdir(exist_ok=True)
        with ZipFile(directory / name, "w") as wheel:
            wheel.writestr("-".join(name.split("-")[:2]) + ".dist-info/METADATA", metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
        script("release_sbom").main(target, libraries)
    return tmp_path


def test_the_list_names_each_library_with_licence_and_hashes(listing: Path) -> None:
    written = json.loads((listing / "target" / "bruce-1.2.3.cdx.json").read_text())
    assert (written["bomFormat"], written["specVersion"]) == ("CycloneDX", "1.6")
    assert written["metadata"]["component"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    found = {each["purl"]: each for each in written["components"]}
    assert found.keys() == {"pkg:pypi/alpha@1.0", "pkg:pypi/beta@2.0"}
    assert found["pkg:pypi/alpha@1.0"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert found["pkg:pypi/beta@2.0"]["licenses"] == [{"license": {"name": "BSD License"}}]
    files = {file["name"]: file["hashes"] for each in found.values() for file in each["components"]}
    assert files == {
        path.name: [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]
        for path in (listing / "libraries").iterdir()
    }


def test_the_list_names_the_requirements_of_the_packages_but_not_of_tests(listing: Path) -> None:
    written = json.loads((listing / "target" / "bruce-1.2.3.cdx.json").read_text())
    required = {each["ref"]: each.get("dependsOn", []) for each in written["dependencies"]}
    expected = {"bruce-mp==1.2.3": ["alpha==1.0", "beta==2.0"], "alpha==1.0": ["beta==2.0"], "beta==2.0": []}
    assert {name: required[name] for name in expected} == expected


def test_a_list_that_breaks_the_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbom = script("release_sbom")

    class Broken:
        def __init__(self, _bom: object) -> None: ...

        def output_as_string(self, indent: int) -> str:
            return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "components": "none"}, indent=indent)

    monkeypatch.setattr(sbom, "JsonV1Dot6", Broken)
    with pytest.raises(ValueError, match="does not fit the schema"):
        sbom.write_bom(None, tmp_path / "list")
    assert not (tmp_path / "list").exists()


# --- the whole -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the release of the last commit twice; it takes ten minutes."""
    target = tmp_path_factory.mktemp("release") / "files"
    run_program(ROOT / "scripts" / "release", "--check", target, time_limit_s=RELEASE_S, PYTHON=sys.executable)
    return target


def run(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.soak
@pytest.mark.process
def test_a_release_has_all_files_and_their_checksums(release: Path) -> None:
    expected = {f"bruce_mp-{__version__}.tar.gz", f"bruce-{__version__}.tgz", f"bruce-{__version__}.cdx.json"}
    for machine, package in PACKAGES.items():
        expected |= {
            f"bruce_mp-{__version__}-cp311-abi3-manylinux_2_28_{machine}.whl",
            f"bruce_{__version__}_{package}.deb",
            f"bruce-{__version__}-1.{machine}.rpm",
        }
    sums = dict(line.split("  ")[::-1] for line in (release / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((release / name).read_bytes()).hexdigest() for name in expected}
    assert {path.name for path in release.iterdir()} == {*expected, "SHA256SUMS"}


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("machine", MACHINES)
def test_a_wheel_has_all_kernels_for_its_architecture(release: Path, machine: str) -> None:
    [wheel] = release.glob(f"*_{machine}.whl")
    with ZipFile(wheel) as archive:
        machines = {
            Path(name).name: int.from_bytes(archive.read(name)[18:20], "little")
            for name in archive.namelist()
            if name.endswith(".so")
        }
    assert machines == {f"{name}.abi3.so": MACHINES[machine] for name in KERNELS}


@pytest.mark.soak
@pytest.mark.process
def test_a_wheel_works_on_compiled_kernels(release: Path, tmp_path: Path) -> None:
    [wheel] = release.glob(f"*_{platform.machine()}.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "from bruce_mp import kernels; from bruce_mp.client.kernels import CHOICE\n"
        "print(kernels.CHOICE.compiled and CHOICE.compiled, kernels.__file__)"
    )
    command = (sys.executable, "-P", "-c", program)
    said = run_program(*command, time_limit_s=60, PYTHONPATH=str(tmp_path), BRUCE_KERNELS="compiled").split()
    assert said[0] == "True"
    assert Path(said[1]).is_relative_to(tmp_path)


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("machine", MACHINES)
def test_a_debian_package_has_the_libraries_of_its_architecture(release: Path, tmp_path: Path, machine: str) -> None:
    [package] = release.glob(f"*_{PACKAGES[machine]}.deb")
    assert run("dpkg-deb", "-f", package, "Architecture").strip() == PACKAGES[machine]
    run("dpkg-deb", "-x", package, tmp_path)
    lib = tmp_path / "opt" / "bruce" / "lib"
    modules = list(lib.rglob("*.so*"))
    assert {int.from_bytes(path.read_bytes()[18:20], "little") for path in modules} == {MACHINES[machine]}
    assert {path.name.partition(".")[0] for path in modules} >= KERNELS
    assert sysconfig.get_config_var("py_version_short") in (tmp_path / "opt/bruce/bin/bruce").read_text()
    assert (tmp_path / "usr/share/man/man1/bruce.1.gz").exists()
    assert not list(lib.rglob("direct_url.json"))


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("machine", MACHINES)
def test_an_rpm_package_names_its_architecture_and_no_builder(release: Path, machine: str) -> None:
    [package] = release.glob(f"*.{machine}.rpm")
    said = run("rpm", "-qp", "--queryformat", "%{VERSION} %{ARCH} %{BUILDHOST}", package)
    assert said == f"{__version__} {machine} localhost"
    assert "/opt/bruce/bin/bruce" in run("rpm", "-qpl", package).split()
