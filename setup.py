"""The compiled kernels; everything else about the package is in setup.cfg.

They are optional: where they cannot be compiled, the package is installed without them, and works on the pure ones.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(Path("bruce_mp/kernels/compiled").glob("*.pyx"))

setup(
    ext_modules=[
        Extension(
            ".".join(source.with_suffix("").parts),
            [str(source)],
            depends=[str(header) for header in source.parent.glob("*.pxd")],
            extra_compile_args=["-O3", "-g0", "-Wno-maybe-uninitialized"],
            optional=True,
        )
        for source in SOURCES
    ]
)
