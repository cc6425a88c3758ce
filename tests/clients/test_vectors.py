"""The test vectors of the client libraries agree with the package, and arguments that no vector has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.protocol.client.messages import EmptyFields, Message, parse_message
from support.client_programs import build, param, run_tool
from support.client_vectors import create_vectors, read_vectors

if TYPE_CHECKING:
    from pathlib import Path

NULLS_WITH_SIZES: Final = r"""
#include <bruce.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    bruce_header headers[] = {{"a", 1, NULL, 5}, {"b", 1, "v", 1}};
    bruce_message message = {.topic = "t", .key_size = 3, .value_size = 4, .headers = headers, .header_count = 2};
    unsigned char buffer[200];
    size_t size;

    message.flags = BRUCE_NULL_VALUE;
    memset(buffer, 0xee, sizeof buffer);
    bruce_encode(&message, buffer, sizeof buffer, &size);
    for (size_t i = 0; i < size; i++)
        printf("%02x", buffer[i]);
}
"""


def test_the_file_of_vectors_is_current() -> None:
    assert read_vectors() == create_vectors(), "write it: PYTHONPATH=tests .venv/bin/python -m support.client_vectors"


def test_the_daemon_accepts_each_vector() -> None:
    messages = [bytes.fromhex(each["message"]) for each in read_vectors()["messages"] if "message" in each]
    assert len(messages) > 20
    assert not [each for each in map(parse_message, messages) if not hasattr(each, "topic")]


@pytest.mark.process
def test_a_null_of_the_c_library_has_no_bytes_whatever_its_size(tmp_path: Path) -> None:
    build("c")
    (tmp_path / "nulls.c").write_text(NULLS_WITH_SIZES)
    compile_it = ("cc", "-Iinclude", "-pthread", "-o", str(tmp_path / "nulls"), str(tmp_path / "nulls.c"))
    run_tool("c", (*compile_it, "build/libbruce.a"))
    message = parse_message(bytes.fromhex(run_tool("c", (str(tmp_path / "nulls"),))))
    assert isinstance(message, Message)
    assert (message.key, message.value, message.empty) == (b"", b"", EmptyFields.NULL_VALUE)
    assert message.headers == ((b"a", None), (b"b", b"v"))


@pytest.mark.process
@pytest.mark.parametrize("name", [param("ruby")])
def test_a_timestamp_is_a_time_or_milliseconds(name: str) -> None:
    build(name)
    times = "1700000000123, 1700000000123.9, 1700000000123.9r, Time.at(0, 1_700_000_000_123, :millisecond)"
    encode = "Bruce::Message.encode('t', 'v', timestamp: time)[13, 8].unpack1('q>')"
    code = f"require './bruce'; puts [{times}].map {{ |time| {encode} }}"
    assert run_tool(name, ("ruby", "-e", code)).split() == ["1700000000123"] * 4


@pytest.mark.process
@pytest.mark.parametrize("name", [param("php")])
def test_a_level_that_does_not_exist_is_refused(name: str) -> None:
    build(name)
    flush = "(new Bruce\\StreamClient('/nowhere'))->flush(0, 'Delivered');"
    code = f"require 'Bruce.php'; try {{ {flush} }} catch (ValueError $error) {{ echo $error->getMessage(); }}"
    assert run_tool(name, ("php", "-r", code)) == "Level Delivered does not exist."
