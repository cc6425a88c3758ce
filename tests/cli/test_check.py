from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from bruce_mp.cli import check, main
from bruce_mp.telemetry.books import Books, balance_line
from support.json_pages import HEALTHY, JsonPages

if TYPE_CHECKING:
    from collections.abc import Callable

BALANCED = Books(9, 5, {"NO_MEM": 1, "BAD_TOPIC": 2}, {"input": 0, "queued": 1}, 0, consistent=True)
LINE = "received 9 = delivered 5 + discarded 3 (BAD_TOPIC 2, NO_MEM 1) + held 1 (queued 1)"
UNBALANCED = msgspec.structs.replace(BALANCED, delivered=4)
MOVING = msgspec.structs.replace(BALANCED, consistent=False)

HEALTH = {"pid": 1, "version": "0.1.0", "since": 0, "now": 60, **HEALTHY, "warnings": ["It rains."]}
PAGES: dict[str, Callable[[], object]] = {"/books/json": lambda: BALANCED, "/healthz": lambda: HEALTH}


def run_check(*readings: object) -> int:
    """Run `bruce check` against a daemon that serves these books in turn; the last one repeats."""
    rest = list(readings)
    books = lambda: rest.pop(0) if len(rest) > 1 else rest[0]  # noqa: E731
    with JsonPages({"/books/json": books, "/healthz": lambda: HEALTH}) as pages:
        return main(["check", "--url", pages.url])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(check, "RETRY_PAUSE_S", 0.01)


def test_balance_line_omits_empty_states() -> None:
    assert balance_line(Books(0, 0, {}, {"input": 0}, 0, consistent=True)) == (
        "received 0 = delivered 0 + discarded 0 + held 0"
    )


def test_check_exits_0_when_the_books_balance(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(BALANCED) == 0
    assert capsys.readouterr() == (LINE + "\n", "Warning: It rains.\n")


def test_check_exits_3_when_the_books_do_not_balance(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(UNBALANCED) == 3
    assert capsys.readouterr().out.startswith("received 9 != delivered 4 + ")


def test_check_reads_changing_books_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "TIMEOUT_S", 60.0)
    assert run_check(MOVING, b"garbage", MOVING, BALANCED) == 0


def test_check_exits_4_when_the_books_never_settle(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(MOVING) == 4
    assert f"Last seen: {LINE}" in capsys.readouterr().err


@pytest.mark.parametrize("page", [b"garbage", b"{}", {"received": "nine"}])
def test_check_exits_4_on_an_invalid_books_page(page: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(page) == 4
    assert "is not a bruce daemon of this version" in capsys.readouterr().err


def test_check_exits_4_on_a_missing_books_page(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonPages({}) as pages:
        assert main(["check", "--url", pages.url]) == 4
    assert "answered /books/json with 404: no such page" in capsys.readouterr().err


def test_check_exits_4_without_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--url", f"unix:{tmp_path / 'nobody'}"]) == 4
    assert "No daemon answers at unix:" in capsys.readouterr().err


def test_check_without_permission_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socket.socket.connect", deny)
    assert main(["check", "--url", f"unix:{tmp_path / 'status'}"]) == 4
    text = capsys.readouterr().err
    assert "Permission denied. Run this as the daemon's user or as root." in text
    assert "No daemon answers" not in text


def test_check_reads_a_unix_socket(tmp_path: Path) -> None:
    with JsonPages(PAGES, path=str(tmp_path / "http")) as pages:
        assert main(["check", "--url", pages.url]) == 0


def write_config(directory: Path, listen: str) -> str:
    path = directory / "bruce.toml"
    path.write_text(
        f'kafka.bootstrap_servers = ["127.0.0.1:1"]\ndaemon.run_dir = "{directory}"\nhttp.listen = "{listen}"\n'
    )
    return str(path)


def test_check_takes_the_address_from_the_config(tmp_path: Path) -> None:
    with JsonPages(PAGES) as pages:
        port = pages.url.rstrip("/").rpartition(":")[2]
        assert main(["check", "--config", write_config(tmp_path, f"0.0.0.0:{port}")]) == 0


def test_check_ignores_a_mistake_that_does_not_concern_it(tmp_path: Path) -> None:
    with JsonPages(PAGES) as pages:
        config = write_config(tmp_path, pages.url.removeprefix("http://").rstrip("/"))
        with Path(config).open("a") as file:
            file.write('slab.siez = "1g"\n')
        assert main(["check", "--config", config]) == 0


def test_check_reads_the_address_file_when_the_port_is_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, "127.0.0.1:0")
    assert main(["check", "--config", config]) == 4
    assert "http.listen has port 0" in capsys.readouterr().err
    (tmp_path / "http.address").write_text("")
    assert main(["check", "--config", config]) == 4
    assert "http.listen has port 0" in capsys.readouterr().err
    with JsonPages(PAGES) as pages:
        (tmp_path / "http.address").write_text(pages.url.removeprefix("http://").rstrip("/"))
        assert main(["check", "--config", config]) == 0
