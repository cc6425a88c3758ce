"""The pages `/msg_debug/...`, which select the topics that the daemon copies for debugging.

Clients should send POST, because these pages change state. GET works as well, for scripts that were written for Dory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flask import Response

from bruce_mp.status.pages.text import topic_bytes, topic_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

    from bruce_mp.status.reports.debug_files import MessageDebug

__all__ = ["add_debug_pages"]

_DISABLED: Final = (
    "Message debugging is disabled: set msg_debug.enable = true and msg_debug.path, and reload the configuration.\n"
)


def add_debug_pages(app: Flask, debug: MessageDebug, guard: Callable[[], None]) -> None:
    """Add the pages to an application. `guard` aborts the current request unless it is allowed to change state."""

    def add_page(path: str, act: Callable[..., str], *, changes_state: bool = True) -> None:
        def respond(**url_variables: str) -> Response:  # the variable is the topic, if the path has one
            if changes_state:
                guard()
            if not debug.is_enabled:
                return Response(_DISABLED, 409, mimetype="text/plain")
            return Response(act(*map(topic_bytes, url_variables.values())), mimetype="text/plain")

        methods = ["GET", "POST"] if changes_state else ["GET"]
        app.add_url_rule(f"/msg_debug/{path}", f"msg_debug_{path}", respond, methods=methods)

    def add_action(path: str, act: Callable[[], None], response_text: str) -> None:
        def act_and_respond() -> str:
            act()
            return response_text

        add_page(path, act_and_respond)

    def add_topic(topic: bytes) -> str:
        return f"{'Enabled' if debug.add(topic) else 'Failed to enable'} debug topic [{topic_text(topic)}]\n"

    def del_topic(topic: bytes) -> str:
        return f"{'Disabled' if debug.remove(topic) else 'Failed to disable'} debug topic [{topic_text(topic)}]\n"

    add_page("get_topics", debug.describe, changes_state=False)
    add_page("add_topic/<path:topic>", add_topic)
    add_page("del_topic/<path:topic>", del_topic)
    add_action("add_all_topics", debug.select_all, "All message debug topics enabled\n")
    add_action("del_all_topics", debug.deselect_all, "All message debug topics disabled\n")
    add_action("truncate_files", debug.truncate, "Message debug files truncated\n")
