"""The test vectors of the client libraries agree with the package."""

from __future__ import annotations

from bruce_mp.protocol.client.messages import parse_message
from support.client_vectors import create_vectors, read_vectors


def test_the_file_of_vectors_is_current() -> None:
    assert read_vectors() == create_vectors(), "write it: PYTHONPATH=tests .venv/bin/python -m support.client_vectors"


def test_the_daemon_accepts_each_vector() -> None:
    messages = [bytes.fromhex(each["message"]) for each in read_vectors()["messages"] if "message" in each]
    assert len(messages) > 20
    assert not [each for each in map(parse_message, messages) if not hasattr(each, "topic")]
