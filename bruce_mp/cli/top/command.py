"""`bruce top`: show rates, brokers, topics and problems of a daemon, and refresh them until `q`.

The command reads `/overview/json`, as the overview page does. The package `rich` draws the tables; the extra `top`
installs it.

Exit status: 0 after the key q, 1 without a terminal or the package `rich`.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.options import command_parser, seconds_from
from bruce_mp.cli.status_client import UnreadableError, add_address, status_client
from bruce_mp.cli.top.page import TopPage, TopSelection
from bruce_mp.cli.top.terminal import read_keys
from bruce_mp.errors import BruceError, ExitCode

try:
    from rich.console import Console
    from rich.live import Live

    from bruce_mp.cli.top.view import TopScreen
except ImportError as error:
    raise BruceError("`bruce top` needs the package rich: pip install 'bruce-mp[top]'.") from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.cli.status_client import StatusClient

__all__ = ["TopState", "main"]

_MIN_INTERVAL_S: Final = 0.5
"""The shortest interval between readings, because a reading costs the daemon CPU time."""
_ALL_LINES: Final = 1_000_000
"""More lines than any list of topics has, to scroll to its beginning or end."""
_MAX_WAIT_S: Final = 86_400.0
"""Limit of a wait for keys, because select() rejects an infinite time."""


def main(argv: Sequence[str]) -> int:
    parser = command_parser("top", "Show a daemon live in the terminal, until the key q.", __doc__)
    add_address(parser)
    help_text = "seconds between two readings (default 2)"
    parser.add_argument("--interval", type=seconds_from(_MIN_INTERVAL_S), default=2.0, metavar="S", help=help_text)
    args = parser.parse_args(argv)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BruceError("`bruce top` needs a terminal. For a script, use `bruce status --json`.")
    console, state = Console(highlight=False), TopState(status_client(args), args.interval)
    with read_keys(sys.stdin.fileno()) as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            state.refresh(console.height)
            live.update(state.screen(*console.size).render(), refresh=True)
            pressed = keys.wait(state.wait_s())
            if pressed is None or not all(map(state.on_key, pressed)):
                return ExitCode.OK


class TopState:
    """The last page that was read, and the state that the user has chosen by keys."""

    def __init__(self, client: StatusClient, interval_s: float) -> None:
        self._client = client
        self._interval_s = interval_s
        self._page: TopPage | None = None
        self._failure = ""
        """The error text of the last reading; empty if it succeeded."""
        self._selection = TopSelection()
        self._typed_filter: str | None = None
        """The text of the filter while the user types it, else None."""
        self._is_paused = False
        self._height = 0
        self._next_reading_s = 0.0
        """The time of the next reading, in seconds on the monotonic clock; 0 means at once."""

    def refresh(self, height: int) -> None:
        """Read the page if it is due, or if the terminal has grown to `height` lines."""
        if height > self._height:
            self._next_reading_s = 0.0
        self._height = height
        if time.monotonic() < self._next_reading_s:
            return
        try:
            self._page = self._client.get("overview", TopPage, self._selection.query(height))
            self._failure = ""
        except UnreadableError as error:
            self._failure = str(error)
        self._next_reading_s = math.inf if self._is_paused else time.monotonic() + self._interval_s

    def wait_s(self) -> float:
        """Return the time to wait for keys, in seconds: until the next reading is due, at most a day."""
        return min(self._next_reading_s - time.monotonic(), _MAX_WAIT_S)

    def screen(self, width: int, height: int) -> TopScreen:
        return TopScreen(self._page, self._selection, height, width, self._typed_filter, self._failure, self._is_paused)

    def on_key(self, key: str) -> bool:
        """Act on a key. Return False if it ends the view."""
        if self._typed_filter is not None:
            self._on_filter_key(self._typed_filter, key)
            return True
        if key == "q":
            return False
        if key == "/":
            self._typed_filter = self._selection.filter_text
        elif key == " ":
            self._is_paused = not self._is_paused
            self._next_reading_s = 0.0  # a pause begins with a last reading, and ends with a new one
        else:
            self._select(self._selection_after(key))
        return True

    def _selection_after(self, key: str) -> TopSelection:
        """Return the selection of topics after a key; a key without a function changes nothing."""
        selection = self._selection
        page_lines = max(1, self.screen(0, self._height).topic_row_count - 1)  # one topic stays in view
        scrolls = {
            "up": -1,
            "down": 1,
            "pgup": -page_lines,
            "pgdn": page_lines,
            "home": -_ALL_LINES,
            "end": _ALL_LINES,
        }
        if key in scrolls:
            return selection.scroll(scrolls[key], self._page.topics.matching if self._page else 0)
        match key:
            case ">":
                return selection.move_sort(1)
            case "<":
                return selection.move_sort(-1)
            case "r":
                return selection.reverse()
            case "escape":
                return selection.filter("")
        return selection

    def _on_filter_key(self, typed_filter: str, key: str) -> None:
        """Act on a key while the user types a filter; `typed_filter` is the text of the filter before this key."""
        if key == "enter":
            self._typed_filter = None
            self._select(self._selection.filter(typed_filter))
        elif key == "escape":
            self._typed_filter = None
        elif key == "backspace":
            self._typed_filter = typed_filter[:-1]
        elif len(key) == 1:
            self._typed_filter = typed_filter + key

    def _select(self, selection: TopSelection) -> None:
        """Store a selection. If it is new, the next `refresh` reads the page."""
        if selection != self._selection:
            self._selection, self._next_reading_s = selection, 0.0
