"""The compiled kernels; everything else about the package is in setup.cfg.

They are optional: where they cannot be compiled, the package is installed without them, and works on the pure ones.
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
    """One kernel module; `stamp` says which sources all of them were made from, see kernels/choice.py."""
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
    """A checkout may be of another release than at the last build: what that had and this has not is not installed."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(ext_modules=[extension(module) for module in MODULES], cmdclass={"build": CleanBuild})
