"""Build the compiled kernels; setup.cfg describes everything else of the package.

The kernels are optional: if they cannot be compiled, the package is installed without them and uses the pure ones.
"""

import hashlib
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build

DIRECTORY = Path("bruce_mp/kernels/compiled")
MODULES = sorted(DIRECTORY.glob("*.pyx"))
HEADERS = sorted(DIRECTORY.glob("*.pxd"))
DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in (*MODULES, *HEADERS))).hexdigest()


def extension(module: Path) -> Extension:
    """Describe one kernel module; `stamp` identifies the sources of all modules, see kernels/choice.py."""
    is_stamp = module.stem == "stamp"
    return Extension(
        ".".join(module.with_suffix("").parts),
        [str(module)],
        depends=[str(path) for path in (*HEADERS, *(MODULES if is_stamp else ()))],
        define_macros=[("BRUCE_SOURCES", f'"{DIGEST}"')] if is_stamp else [],
        extra_compile_args=["-O3", "-g0", "-Wno-maybe-uninitialized"],
        optional=True,
    )


class CleanBuild(build):
    """A build that first removes earlier output, which may contain modules of another release."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(ext_modules=[extension(module) for module in MODULES], cmdclass={"build": CleanBuild})
