"""Lines of a discard file: the old daemons' lines, round trips, and malformed lines."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import DiscardReason, RemoteProtocolError
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, format_line, info_of, parse_line
from support.examples import examples
from support.headers import header_lists

PLAIN = b"now: 1000 ts: 990 event: DISC info: BAD_TOPIC topic: 6[clicks] key: 4[a2V5] msg: 8[dmFsdWU=]\n"
MESSAGE = DiscardLine(1000, 990, LineEvent.DISCARD, "BAD_TOPIC", b"clicks", b"key", b"value")

times = st.integers(0, 2**63 - 1)
lines = st.builds(
    DiscardLine,
    now_ms=times,
    timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    event=st.sampled_from(LineEvent),
    info=st.sampled_from(["NONE", "SLAB", "VERSION(-1)", *(info_of(reason, 7) for reason in DiscardReason)]),
    topic=st.binary(max_size=30)
    | st.text(max_size=10).map(str.encode)
    | st.sampled_from([b"] key: 0[", b"\\x0a", b"\n"]),
    key=st.binary(max_size=30),
    value=st.binary(max_size=300),
    partition_key=st.none() | st.integers(0, 2**32 - 1),
    headers=header_lists,
    empty=st.sampled_from([0, 4, 8, 16, 20]),
)


def test_a_line_has_the_original_format() -> None:
    assert format_line(MESSAGE) == PLAIN
    assert parse_line(PLAIN) == parse_line(PLAIN.rstrip()) == MESSAGE


def test_an_unparsed_message_is_written_as_received() -> None:
    line = DiscardLine(5, 5, LineEvent.DISCARD, "API_KEY(-3)", b"", b"", b"\0")
    assert format_line(line) == b"now: 5 ts: 5 event: DISC info: API_KEY(-3) topic: 0[] key: 0[] msg: 4[AA==]\n"


def test_the_partition_key_follows_dorys_fields() -> None:
    line = b"now: 1 ts: -1 event: DUP info: NONE topic: 1[t] key: 0[] msg: 0[] pkey: 4294967295\n"
    assert parse_line(line).partition_key == 2**32 - 1
    assert format_line(parse_line(line)) == line


def test_record_headers_follow_the_partition_key() -> None:
    headers = ((b"a", b"1"), (b"", None), (b"", b""))
    line = format_line(DiscardLine(1, -1, LineEvent.DUPLICATE, "NONE", b"t", b"", b"", 7, headers))
    assert line.endswith(b" msg: 0[] pkey: 7 hdrs: YQ==:MQ==,:-,:\n")
    assert parse_line(line).headers == headers


def test_the_choice_of_null_or_empty_ends_the_line() -> None:
    line = format_line(DiscardLine(1, -1, LineEvent.DISCARD, "SLAB", b"t", b"k", b"", empty=8))
    assert line.endswith(b" key: 4[aw==] msg: 0[] empty: 8\n")
    assert parse_line(line).empty == 8


@pytest.mark.parametrize("text", ["YQ==", "YQ==:MQ==:MQ==", "YQ:MQ==", "-:MQ==", "YQ==:MQ==,"])
def test_invalid_headers_are_rejected(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="hdrs"):
        parse_line(PLAIN.rstrip() + f" hdrs: {text}".encode())


def test_the_topic_length_counts_the_escaped_bytes() -> None:
    line = format_line(DiscardLine(1, 1, LineEvent.DISCARD, "SLAB", b"a\nb\\", b"", b""))
    assert b"topic: 10[a\\x0ab\\x5c] key" in line
    assert parse_line(line).topic == b"a\nb\\"


def test_an_unescaped_topic_is_accepted() -> None:
    assert parse_line(PLAIN.replace(b"6[clicks]", "6[cl\\kß]".encode())).topic == "cl\\kß".encode()


def test_unknown_fields_are_ignored() -> None:
    line = PLAIN.rstrip() + b" colour: blue pkey: 3 size: 1\n"
    assert parse_line(line).partition_key == 3


def test_info_names_the_reason_and_its_number() -> None:
    assert info_of(DiscardReason.UNSUPPORTED_API_KEY, -3) == "API_KEY(-3)"
    assert info_of(DiscardReason.UNSUPPORTED_VERSION, 2) == "VERSION(2)"
    assert info_of(DiscardReason.NO_MEM) == "NO_MEM"


@examples(75)
@given(line=lines)
def test_a_formatted_line_parses_back(line: DiscardLine) -> None:
    data = format_line(line)
    assert data.index(b"\n") == len(data) - 1
    assert data.isascii()
    assert parse_line(data) == line


@pytest.mark.parametrize(
    ("found", "put", "text"),
    [
        (b"now:", b"then:", "begins with `now: MS"),
        (b"990", b"soon", "begins with `now: MS"),
        (b"DISC", b"LOST", "begins with `now: MS"),
        (b"topic: 6", b"topics: 6", r"Byte 46 .* should begin `topic: LENGTH\["),
        (b"6[clicks]", b"5[clicks]", "The topic .* is not as long as it says"),
        (b"key: 4[", b"key: 99999999999999999999[", "The key .* is not as long as it says"),
        (b"key: 4[", b"key: 1[", "The key .* is not as long as it says"),
        (b"] key", b"]_key", "should begin `key: LENGTH"),
        (b"a2V5", b"a2V*", "The key .* is not base64"),
        (b"dmFsdWU=", b"dmFsdWU!", "The msg .* is not base64"),
        (b"=]", b"=] pkey: -1", "The pkey .* is not an unsigned number of 32 bits"),
        (b"=]", b"=] pkey: 4294967296", "The pkey .* is not an unsigned number of 32 bits"),
        (b"=]", b"=] empty: x", 'The field "empty" .* is not a sum'),
        (b"=]", b"=] empty: 1", 'The field "empty" .* is not a sum'),
        (b"=]", b"=] empty: " + b"4" * 5000, 'The field "empty" .* is not a sum'),
        (b"=]", b"=] pkey", "should begin ` NAME: VALUE`"),
        (b" msg: 8[dmFsdWU=]", b"", "should begin `msg: LENGTH"),
    ],
)
def test_an_invalid_line_is_rejected(found: bytes, put: bytes, text: str) -> None:
    assert found in PLAIN
    with pytest.raises(RemoteProtocolError, match=text):
        parse_line(PLAIN.replace(found, put, 1))


@examples(75)
@given(data=st.binary(max_size=100), start=st.integers(0, 100), end=st.integers(0, 100))
def test_garbage_raises_only_remote_protocol_error(data: bytes, start: int, end: int) -> None:
    line = PLAIN[:start] + data + PLAIN[end:]
    with suppress(RemoteProtocolError):
        assert parse_line(format_line(parse_line(line))) == parse_line(line)
