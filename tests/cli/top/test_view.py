"""The screen of `bruce top` for pages of all sizes, and the keys."""

from __future__ import annotations

import os
from contextlib import suppress
from io import StringIO
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from rich.console import Console

from bruce_mp.cli.status_client import StatusClient, UnreadableError
from bruce_mp.cli.top.command import TopState
from bruce_mp.cli.top.page import SORT_KEYS, TopPage, TopSelection
from bruce_mp.cli.top.terminal import Keys, split_keys
from bruce_mp.cli.top.view import TopScreen, duration_text, rate_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.status_pages import OfflineStatusPages

SIZES: Final = [(80, 24), (130, 40), (60, 12), (220, 60)]


def topic(number: int, **fields: Any) -> dict[str, Any]:
    line = {
        "topic": f"topic-{number}", "partitions": 4, "delivered": 10.0 * number, "size": 2000.0, "p50_ms": 3.0,
        "p99_ms": 1234.0, "waiting": 7, "in_flight": 2, "oldest_ms": 4200, "paused": None, "errors": 0,
        "last_error": "", "last_error_at": None, "discarded": 0,
    }  # fmt: skip
    return line | fields


def make_page(topics: int = 30, brokers: int = 3, problems: int = 0, **fields: Any) -> TopPage:
    page = {
        "pid": 1, "version": "1.0.0", "since": 0, "now": 1_800_000_000, "host": "web-1",
        "health": {"problems": [f"Broker {each} hurts." for each in range(problems)], "warnings": []},
        "flow": {"seconds": 55.0, "received": 1234.0, "delivered": 1230.0, "size": 3 << 20},
        "books": {"received": 9, "delivered": 5, "discarded": 1, "held": {"router": 3}, "balanced": True},
        "oldest_ms": 4200, "slab": {"size": 128 << 20, "in_use": 64 << 20},
        "latency": {"minute": {"p50_ms": 2.0, "p99_ms": 9.0}},
        "brokers": [
            {"node": node, "address": f"kafka{node}:9092", "connection": "failed" if node == 1 else "connected",
             "queued": 50_000 if node == 1 else 0, "delivered": 3.0, "p50_ms": None, "p99_ms": None, "errors_minute": 0}
            for node in range(1, brokers + 1)
        ],
        "paused_count": None,
        "topics": {"shown": [topic(number) for number in range(topics)], "matching": topics, "total": topics},
        "discards": {"reasons": [
            {"reason": "BUG", "total": 1, "minute": 1, "hour": 1, "is_fault": True, "meaning": "a fault"},
        ]},
    }  # fmt: skip
    return msgspec.convert(page | fields, TopPage)


def draw(page: TopPage | None, width: int = 130, height: int = 40, **fields: Any) -> list[str]:
    screen = TopScreen(page, fields.pop("selection", TopSelection()), height, width, **fields)
    console = Console(file=StringIO(), width=width, height=height, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(screen.render(), end="")
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("brokers", [0, 3, 40])
@pytest.mark.parametrize("problems", [0, 20])
def test_the_screen_fits_the_terminal(width: int, height: int, brokers: int, problems: int) -> None:
    lines = draw(make_page(500, brokers, problems), width, height)
    assert max(map(len, lines)) <= width
    if height > 20 or brokers < 40:
        assert len(lines) <= max(height, 10 + min(problems, 5) + brokers)
    assert "q quit" in lines[-1]


def test_the_screen_uses_all_lines_for_topics() -> None:
    lines = draw(make_page(500))
    assert len(lines) == 40
    assert "topic-29" not in lines[-1]


def test_unused_lines_show_whole_sentences() -> None:
    sentence = "Broker 1 has failed. " * 12 + "Check it."
    page = make_page(2, health={"problems": [sentence, sentence], "warnings": []})
    text = " ".join(" ".join(draw(page)).split())
    assert text.count("Check it.") == 2
    cut = draw(make_page(500, health={"problems": [sentence], "warnings": []}))
    assert len(cut) == 40
    assert cut[3].endswith("…")
    few = draw(page, height=17)  # room for one of them
    assert len(few) <= 17
    assert sum("Check it." in line for line in few) == 1


def test_the_screen_shows_numbers_and_their_window() -> None:
    text = "\n".join(draw(make_page()))
    for part in (
        "bruce 1.0.0 on web-1  healthy  2027-01-15 08:00:00 UTC",
        "last minute: in 1,234/s  delivered 1,230/s  slab 50.0 % of 128 MiB  50 % within 2 ms, 99 % 9 ms  3.0 MiB/s",
        "received 9 = delivered 5 + discarded 1 + held 3 (oldest 4.2 s)  balanced",
        "discarded in the last minute: BUG 1",
        "1 at kafka1:9092",
        "50,000",
        "DELIVERED/S▼",
        "3 ms / 1.2 s",
    ):
        assert part in text
    assert "last 12 s: in" in draw(make_page(flow={"seconds": 12.3, "received": 0, "delivered": 0, "size": 0}))[1]


def test_what_clients_and_brokers_send_cannot_control_the_terminal() -> None:
    hostile = "[red]\x1b]0;title\x07\x1b[2J\x9b31m\u202e"
    page = make_page(topics=0, host=hostile, health={"problems": [hostile], "warnings": [hostile]})
    page.topics.shown.append(msgspec.convert(topic(1, topic=hostile), type(make_page().topics.shown[0])))
    text = "\n".join(draw(page, failure=hostile, typed_filter=None))
    assert not any(sign in text for sign in "\x1b\x07\x9b\u202e")
    assert text.count("[red]") == 5  # no markup either


def test_the_screen_before_the_first_answer_says_why() -> None:
    lines = draw(None, failure="No daemon answers at 127.0.0.1:1: Connection refused.")
    assert "waiting for the first answer" in lines[0]
    assert "No daemon answers" in lines[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rate_text(0), "0"), (rate_text(0.04), "<0.1"), (rate_text(9.94), "9.9"), (rate_text(12345.6), "12,346"),
        (size_text(0), "0 B"), (size_text(1023), "1023 B"), (size_text(1536), "1.5 KiB"),
        (size_text(2**50), "1024 TiB"),
        (duration_text(None), "-"), (duration_text(999), "999 ms"), (duration_text(1500), "1.5 s"),
        (duration_text(90_000), "90 s"),
        (duration_text(600_000), "10 min"), (duration_text(36_000_000), "10 h"), (duration_text(864_000_000), "10 d"),
    ],
)  # fmt: skip
def test_numbers_have_units(text: str, expected: str) -> None:
    assert text == expected


# --- keys -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B\x1b[5~\x1b[6~", ["up", "down", "pgup", "pgdn"]),
        ("\x1br", ["escape", "r"]),
        ("\x1b", ["escape"]),
        ("\x1b[200~ab\r\x7f", ["a", "b", "enter", "backspace"]),
        ("ü\x00\x9b", ["ü"]),
    ],
)
def test_the_terminals_bytes_become_keys(sent: str, keys: list[str]) -> None:
    assert split_keys(sent) == keys


@pytest.fixture
def terminal() -> Iterator[tuple[int, Keys]]:
    (keys_fd, terminal_fd), (signals_fd, wakeup_fd) = os.pipe(), os.pipe()
    yield terminal_fd, Keys(keys_fd, signals_fd)
    for each in (keys_fd, terminal_fd, signals_fd, wakeup_fd):
        with suppress(OSError):  # a test closed it
            os.close(each)


@pytest.mark.parametrize("split_at", [1, 2, 3])
def test_a_key_is_whole_although_its_bytes_come_in_two_reads(
    terminal: tuple[int, Keys], split_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bruce_mp.cli.top.terminal._MAX_REST_WAIT_S", 9)
    terminal_fd, keys = terminal
    os.write(terminal_fd, b"\x1b[5~"[:split_at])
    rest = Timer(0.01, os.write, (terminal_fd, b"\x1b[5~"[split_at:]))
    rest.start()
    assert keys.wait(9) == ["pgup"]
    rest.join()


def test_the_escape_key_needs_no_further_byte(terminal: tuple[int, Keys]) -> None:
    terminal_fd, keys = terminal
    os.write(terminal_fd, b"q\x1b")
    assert keys.wait(9) == ["q", "escape"]
    os.write(terminal_fd, b"\x1b")
    os.close(terminal_fd)
    assert (keys.wait(9), keys.wait(9)) == (["escape"], None)


class _Client(StatusClient):
    """A daemon whose pages a test replaces."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.page: TopPage | None = make_page()

    def get(self, page: str, shape: type[Any], query: str = "") -> Any:
        assert (page, shape) == ("overview", TopPage)
        self.queries.append(query)
        if self.page is None:
            raise UnreadableError("No daemon answers.")
        return self.page


@pytest.fixture
def client() -> _Client:
    return _Client()


def press(state: TopState, *keys: str) -> bool:
    return all(map(state.on_key, keys))


def test_keys_sort_reverse_and_filter_the_topics(client: _Client) -> None:
    state = TopState(client, 2.0)
    state.refresh(40)
    for keys, query in (
        ((), "topic=&sort=delivered&order=descending&limit=40"),
        ((">",), "topic=&sort=size&order=descending&limit=40"),
        (("<", "<"), "topic=&sort=topic&order=ascending&limit=40"),
        (("r",), "topic=&sort=topic&order=descending&limit=40"),
        (("/", "a", "&", "q", "backspace", "enter"), "topic=a%26&sort=topic&order=descending&limit=40"),
        (("/", "x", "escape"), "topic=a%26&sort=topic&order=descending&limit=40"),
        (("escape",), "topic=&sort=topic&order=descending&limit=40"),
        (("down", "down", "up"), "topic=&sort=topic&order=descending&limit=41"),
    ):
        assert press(state, *keys)
        state.refresh(40)
        assert client.queries[-1] == query
    assert not press(state, "q")


def test_scrolling_stops_at_both_ends(client: _Client) -> None:
    state = TopState(client, 2.0)
    state.refresh(20)
    press(state, "up", "pgup")
    assert state.screen(80, 20).selection.offset == 0
    press(state, *["pgdn"] * 50)
    assert state.screen(80, 20).selection.offset == 29
    press(state, "home")
    assert state.screen(80, 20).selection.offset == 0


@pytest.mark.parametrize("failure", ["", "no answer"])
def test_one_topic_of_a_page_stays_in_view(failure: str, client: _Client) -> None:
    state = TopState(client, 2.0)
    state.refresh(20)
    state._failure = failure
    shown = [line.split()[0] for line in draw(client.page, height=20, failure=failure) if line.startswith("topic-")]
    press(state, "pgdn")
    assert shown[-1] == f"topic-{state.screen(80, 20).selection.offset}"


def test_a_pause_stops_the_readings_and_ends_with_one(client: _Client, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("bruce_mp.cli.top.command.time.monotonic", lambda: now)
    state = TopState(client, 2.0)
    state.refresh(40)
    assert state.wait_s() == 2.0
    press(state, " ")
    state.refresh(40)
    now += 1000
    state.refresh(40)
    assert (len(client.queries), state.wait_s()) == (2, 86_400.0)
    assert "paused" in draw(client.page, is_paused=True)[0]
    press(state, " ")
    state.refresh(40)
    assert (len(client.queries), state.wait_s()) == (3, 2.0)


def test_a_silent_daemon_leaves_the_last_page_on_the_screen(client: _Client) -> None:
    state = TopState(client, 0.5)
    state.refresh(40)
    client.page = None
    press(state, "r")
    state.refresh(40)
    screen = state.screen(130, 40)
    assert (screen.page, screen.failure) == (make_page(), "No daemon answers.")


def test_the_daemons_own_page_can_be_shown(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 3)
    for sort in SORT_KEYS:
        answer = daemon.client.get(f"/overview/json?{TopSelection(sort_key=sort).query(20)}")
        page = msgspec.json.decode(answer.get_data(), type=TopPage)
        assert any("news" in line for line in draw(page))
