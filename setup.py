"""Build the compiled kernels; setup.cfg describes everything else of the package.

The kernels are optional: if they cannot be compiled, the package is installed without them and uses the pure ones.
BRUCE_KERNELS=compiled in the environment requires them, as it does at run time.
"""

import hashlib
import os
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build

PACKAGES = [Path("bruce_mp/client/kernels/compiled"), Path("bruce_mp/kernels/compiled")]


def extensions(package: Path) -> list[Extension]:
    """Describe the kernel modules; the module `stamp` has a digest of all their sources, see kernel_choice.py."""
    modules, headers = sorted(package.glob("*.pyx")), sorted(package.glob("*.pxd"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*modules, *headers))).hexdigest()
    return [
        Extension(
            ".".join(module.with_suffix("").parts),
            [str(module)],
            depends=[str(path) for path in (*headers, *(modules if module.stem == "stamp" else ()))],
            define_macros=[("BRUCE_SOURCES", f'"{digest}"')] if module.stem == "stamp" else [],
            extra_compile_args=["-O3", "-g0", "-Wno-maybe-uninitialized"],
            optional=os.environ.get("BRUCE_KERNELS") != "compiled",
        )
        for module in modules
    ]


class CleanBuild(build):
    """A build that first removes earlier output, which may contain modules of another release."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(ext_modules=[each for package in PACKAGES for each in extensions(package)], cmdclass={"build": CleanBuild})
