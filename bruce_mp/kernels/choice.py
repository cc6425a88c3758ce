"""The choice between the compiled and the pure kernels of the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bruce_mp.kernel_choice import KernelChoice, choose, kernel_names

__all__ = ["CHOICE", "KERNELS"]

_PACKAGE: Final = Path(__file__).parent
KERNELS: Final = kernel_names(_PACKAGE)
CHOICE: Final[KernelChoice] = choose("bruce_mp.kernels", _PACKAGE)
