"""Where spill files lie: beside a slab on a disk, never in memory."""

from __future__ import annotations

import pytest

from bruce_mp.config.paths import disk_path_for


@pytest.mark.parametrize(
    ("slab", "setting", "state", "expected"),
    [
        ("/var/lib/b/slab", None, None, "/var/lib/b/slab.spill"),
        ("/var/lib/b/slab", None, "/state", "/var/lib/b/slab.spill"),
        ("/dev/shm/bruce-run-bruce.slab", None, None, "/var/tmp/bruce-run-bruce.slab.spill"),
        ("/dev/shm/bruce-run-bruce.slab", None, "/var/lib/bruce:/x", "/var/lib/bruce/bruce-run-bruce.slab.spill"),
        ("/dev/shm/bruce-run-bruce.slab", "/data", "/var/lib/bruce", "/data/bruce-run-bruce.slab.spill"),
        ("/var/lib/b/slab", "/data", None, "/data/slab.spill"),
    ],
)
def test_the_directory_of_spill_files_is_on_a_disk(
    monkeypatch: pytest.MonkeyPatch, slab: str, setting: str | None, state: str | None, expected: str
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    if state is not None:
        monkeypatch.setenv("STATE_DIRECTORY", state)
    assert disk_path_for(slab, setting, "spill") == expected
