"""The rules for lines that are sent again."""

from __future__ import annotations

from typing import Any

import pytest

from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent
from bruce_mp.protocol.client.messages import EmptyFields, Message
from bruce_mp.protocol.client.replay_rules import LineFate, LineSelection, in_replay_order, line_of, message_of

FIELDS: dict[str, Any] = {
    "now_ms": 5, "timestamp_ms": 100, "event": LineEvent.DISCARD, "info": "NO_MEM", "topic": b"t", "key": b"k",
    "value": b"v",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "selection", "fate"),
    [
        ({}, {}, LineFate.SEND),
        ({"info": "SLAB"}, {}, LineFate.SEND),
        ({"info": "SLAB_DELIVERED"}, {}, LineFate.IN_KAFKA),
        ({"info": "SLAB_SENT"}, {}, LineFate.IN_KAFKA),
        ({"info": "POSSIBLY_DELIVERED"}, {}, LineFate.IN_KAFKA),
        ({"info": "SLAB_SENT"}, {"topics": ["other"]}, LineFate.FILTERED),
        ({"info": "SLAB_SENT"}, {"infos": ["NO_MEM"]}, LineFate.FILTERED),
        ({"info": "SLAB_SENT"}, {"infos": ["SLAB_SENT"]}, LineFate.SEND),
        ({"info": "POSSIBLY_DELIVERED"}, {"infos": ["POSSIBLY_DELIVERED"]}, LineFate.SEND),
        ({"info": "ABANDONED_ATTEMPT"}, {}, LineFate.ABANDONED),
        ({"info": "ABANDONED_ATTEMPT"}, {"includes_abandoned": True}, LineFate.SEND),
        ({"info": "ABANDONED_ATTEMPT"}, {"infos": ["ABANDONED_ATTEMPT"]}, LineFate.SEND),
        ({"info": "ABANDONED_ATTEMPT"}, {"topics": ["other"], "includes_abandoned": True}, LineFate.FILTERED),
        ({"info": "SLAB_SENT"}, {"includes_abandoned": True}, LineFate.IN_KAFKA),
        ({}, {"infos": ["BAD_TOPIC"]}, LineFate.FILTERED),
        ({}, {"topics": ["t"]}, LineFate.SEND),
        ({}, {"topics": ["other"]}, LineFate.FILTERED),
        ({}, {"since_ms": 100, "until_ms": 101}, LineFate.SEND),
        ({}, {"since_ms": 101}, LineFate.FILTERED),
        ({}, {"until_ms": 100}, LineFate.FILTERED),
        ({"event": LineEvent.DUPLICATE, "info": "NONE"}, {}, LineFate.NO_MESSAGE),
        ({"info": "MALFORMED", "topic": b""}, {}, LineFate.NO_MESSAGE),
        ({"info": "VERSION(3)", "topic": b""}, {}, LineFate.NO_MESSAGE),
        ({"info": "UNCLEAN_T"}, {}, LineFate.NO_MESSAGE),
        ({"info": "SENDER_NOT_ALLOWED", "topic": b""}, {}, LineFate.NO_MESSAGE),
    ],
)
def test_a_line_is_sent_if_it_is_a_selected_message(
    changed: dict[str, Any], selection: dict[str, Any], fate: LineFate
) -> None:
    assert LineSelection(**selection).fate_of(DiscardLine(**(FIELDS | changed))) is fate


def test_the_files_of_a_log_are_replayed_from_the_oldest() -> None:
    old, new = "log.1712345678901", "log.1712345678902"
    files = ["/b/log", "/a/log", f"/b/{old}", f"/a/{new}", f"/a/{old}", "/a/log.old"]
    ordered = [f"/b/{old}", "/b/log", f"/a/{old}", f"/a/{new}", "/a/log", "/a/log.old"]
    assert in_replay_order(files) == ordered


def test_other_bytes_are_no_line() -> None:
    assert line_of(b"no line") is None
    assert LineSelection().fate_of(None) is LineFate.NO_MESSAGE


def test_a_message_has_all_fields_of_its_line() -> None:
    line = DiscardLine(**FIELDS, partition_key=2**32 - 1, headers=((b"a", None),), empty=16)
    assert message_of(line) == Message(b"t", b"v", b"k", 100, 2**32 - 1, ((b"a", None),), EmptyFields.EMPTY_VALUE)
