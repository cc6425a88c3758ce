"""Configurations of Dory and Bruce, and their conversion."""

from __future__ import annotations

import tomllib
from typing import Any

from bruce_mp.cli.importing.command_line import parse_options
from bruce_mp.cli.importing.convert import convert

__all__ = ["BROKERS", "DATAGRAM", "HEAD", "bruce", "dory", "ours"]

HEAD = '<?xml version="1.0" encoding="US-ASCII"?>\n'
BROKERS = '<initialBrokers><broker host="kafka-1" port="9092"/></initialBrokers>'
DATAGRAM = (
    '<inputSources><unixDatagram enable="true"><path value="/var/run/dory/in"/><mode value="0222"/></unixDatagram>'
    "</inputSources>"
)


def dory(*sections: str) -> bytes:
    return f"{HEAD}<doryConfig>\n{chr(10).join(sections)}\n</doryConfig>".encode()


def bruce(*sections: str) -> bytes:
    return f"{HEAD}<bruceConfig>\n{chr(10).join(sections)}\n</bruceConfig>".encode()


def ours(data: bytes, line: str | None = None) -> dict[str, Any]:
    return tomllib.loads(convert(data, "old.xml", None if line is None else parse_options(line)))
