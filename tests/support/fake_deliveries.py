"""Sums of delivered messages without a slab."""

from __future__ import annotations

__all__ = ["FakeDeliveries"]


class FakeDeliveries(list[tuple[bytes, int, int, dict[int, int]]]):
    """The sums of `kernels.Deliveries`, as a list that tests fill."""

    def sums(self) -> FakeDeliveries:
        return self
