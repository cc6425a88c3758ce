"""Record headers for tests with random messages."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

__all__ = ["header_lists"]

keys = st.binary(max_size=6) | st.sampled_from([63, 64, 8191, 8192, 32767]).map(bytes)
values = st.none() | st.binary(max_size=6) | st.sampled_from([63, 64, 8192, 30000]).map(bytes)
header_lists: Final = st.just(()) | st.lists(st.tuples(keys, values), max_size=3).map(
    lambda headers: tuple(headers) if sum(6 + len(key) + len(value or b"") for key, value in headers) < 2**16 else ()
)
"""Up to three headers, whose sizes together fit into a message."""
