"""With a long socket queue, the input of a real daemon naps while messages come fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.long_queue import MESSAGES, in_namespace, may_have_namespaces

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.process,
    pytest.mark.quiet,
    pytest.mark.skipif(not may_have_namespaces(), reason="this user may not have a network of his own here"),
]


def test_coalescing_receives_many_messages_per_wake_up_across_an_upgrade(tmp_path: Path) -> None:
    counts = in_namespace(tmp_path)
    assert len(counts) == 2
    assert all(count < MESSAGES / 4 for count in counts), counts  # without naps most come alone
