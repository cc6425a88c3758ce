"""List the libraries in the packages of a release, with versions, licenses and hashes, as a CycloneDX file.

    scripts/release_sbom.py DIRECTORY LIBRARIES

DIRECTORY has the wheels of bruce, and the list is written into it. LIBRARIES has the wheels of all libraries for each
architecture. The list is made from the metadata of these wheels, which do not name the C libraries inside a wheel, such
as libzmq. The library that writes the list also validates it against the schema.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from datetime import UTC, datetime
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from email.message import Message

    from cyclonedx.model.license import License

EXTRA: Final = "top"
"""Besides the required libraries, the packages contain the libraries of this extra of bruce's wheel."""
LICENSE_CLASSIFIER: Final = "License :: OSI Approved :: "
MAX_LICENSE_NAME_LENGTH: Final = 80
"""A field `License` that is longer contains the text of the license in place of its name."""
LICENSES: Final = LicenseFactory()


class Wheel(NamedTuple):
    file: Path
    metadata: Message

    @property
    def name(self) -> str:
        return canonicalize_name(self.metadata["Name"])


def read_wheel(file: Path) -> Wheel:
    with zipfile.ZipFile(file) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA") and each.count("/") == 1]
        return Wheel(file, Parser().parsestr(archive.read(name).decode()))


def licenses_of(metadata: Message) -> list[License]:
    """Return the license expression, else the license in the older field `License`, else those of the classifiers."""
    expression, field = metadata["License-Expression"], metadata["License"]
    if expression:
        return [LICENSES.make_from_string(expression)]
    if field and len(field) <= MAX_LICENSE_NAME_LENGTH and "\n" not in field:
        return [LICENSES.make_from_string(field)]
    classifiers = [each for each in metadata.get_all("Classifier", []) if each.startswith(LICENSE_CLASSIFIER)]
    return [LICENSES.make_with_name(each.removeprefix(LICENSE_CLASSIFIER)) for each in classifiers]


def component_of(wheels: list[Wheel], kind: ComponentType) -> Component:
    """Describe a library, or bruce itself, by its wheels: those of one version for all architectures."""
    metadata = wheels[0].metadata
    name, version = wheels[0].name, metadata["Version"]
    return Component(
        name=name,
        version=version,
        type=kind,
        bom_ref=f"{name}=={version}",
        description=metadata["Summary"],
        licenses=licenses_of(metadata),
        purl=PackageURL("pypi", name=name, version=version),
        components=[file_component(wheel.file) for wheel in wheels],
    )


def file_component(wheel: Path) -> Component:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest)]
    return Component(name=wheel.name, type=ComponentType.FILE, bom_ref=f"file:{wheel.name}", hashes=hashes)


def requirements_of(wheel: Wheel, extra: str = "") -> set[str]:
    """Return the names of the libraries that a wheel, with this extra of it, requires on Linux with this Python."""
    found = map(Requirement, wheel.metadata.get_all("Requires-Dist", []))
    return {
        canonicalize_name(each.name)
        for each in found
        if each.marker is None or each.marker.evaluate({"extra": extra, "sys_platform": "linux"})
    }


def build_bom(own: list[Wheel], libraries: Iterable[Wheel], epoch: int) -> Bom:
    """Return the list of bruce's wheels `own` and of the libraries, with their dependencies and the time `epoch`."""
    by_name: dict[str, list[Wheel]] = {}
    for wheel in sorted(libraries, key=lambda each: each.file.name):
        by_name.setdefault(wheel.name, []).append(wheel)
    root = component_of(own, ComponentType.APPLICATION)
    components = {name: component_of(wheels, ComponentType.LIBRARY) for name, wheels in by_name.items()}
    bom = Bom(components=components.values(), serial_number=uuid5(NAMESPACE_URL, f"{root.bom_ref} {epoch}"))
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.tools.components.add(this_component())
    bom.register_dependency(root, [components[name] for name in sorted(requirements_of(own[0], EXTRA))])
    for name, wheels in by_name.items():
        required = sorted(requirements_of(wheels[0]) & components.keys())
        bom.register_dependency(components[name], [components[each] for each in required])
    return bom


def write_bom(bom: Bom, target: Path) -> None:
    """Validate the list against the schema, and write it. Raise ValueError if it is invalid."""
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"the list of libraries does not fit the schema of CycloneDX 1.6: {error}")
    target.write_text(text + "\n")


def main(directory: Path, libraries: Path) -> None:
    own = [read_wheel(file) for file in sorted(directory.glob("bruce_mp-*.whl"))]
    bom = build_bom(own, map(read_wheel, libraries.glob("*.whl")), int(os.environ["SOURCE_DATE_EPOCH"]))
    write_bom(bom, directory / f"bruce-{own[0].metadata['Version']}.cdx.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
