from __future__ import annotations

from pathlib import Path

import pytest

from bruce_mp.errors import StartError
from bruce_mp.supervisor.sockets import datagram_limits
from bruce_mp.supervisor.sockets.datagram_limits import check_datagram_size, warn_of_short_queue

DEFAULT = int(Path("/proc/sys/net/core/wmem_default").read_text())
LARGEST = int(Path("/proc/sys/net/core/wmem_max").read_text())
LARGE = DEFAULT
"""Larger than a send buffer of that size with its overhead; but the kernel doubles the requested size."""


def test_a_size_that_every_sender_can_send_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    check_datagram_size(64 * 1024, allow_large=False)
    assert not caplog.records


def test_a_size_that_needs_a_larger_send_buffer_must_be_allowed(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StartError, match=r"input\.allow_large_datagrams = true"):
        check_datagram_size(LARGE, allow_large=False)
    check_datagram_size(LARGE, allow_large=True)
    assert "must raise SO_SNDBUF" in caplog.text


def test_a_size_beyond_the_kernel_limit_is_refused() -> None:
    with pytest.raises(StartError, match=r"too large.*wmem_max"):
        check_datagram_size(2 * LARGEST + 1, allow_large=True)


@pytest.mark.parametrize(
    ("length", "warns"), [("0\n", True), ("10\n", True), ("511", True), ("512\n", False), ("", False)]
)
def test_a_short_queue_is_worth_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, length: str, *, warns: bool
) -> None:
    monkeypatch.setattr(datagram_limits, "QUEUE_LENGTH_FILE", tmp_path / "qlen")
    (tmp_path / "qlen").write_text(length)
    warn_of_short_queue()
    assert ("sysctl -w net.unix.max_dgram_qlen=512" in caplog.text) is warns


def test_an_unreadable_queue_length_causes_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram_limits, "QUEUE_LENGTH_FILE", tmp_path / "nothing")
    warn_of_short_queue()
