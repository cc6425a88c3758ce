from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.changes import list_changes
from bruce_mp.config.load import load_config

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.config.model import Config

BASE = """
kafka.bootstrap_servers = ["kafka1:9092"]
batching.configs.quick = { time_ms = 5 }
rate_limit.configs.few = { interval_ms = 1000, max_count = 0 }
rate_limit.topics = { clicks = "few" }
"""


def config(path: Path, text: str) -> Config:
    path.write_text(text)
    return load_config(path)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("", "", []),
        ("", 'logging.level = "DEBUG"', ['logging.level from "NOTICE" to "DEBUG"']),
        ("delivery.max_in_flight = 3", "", ["delivery.max_in_flight from 3 to 5"]),
        ("", 'input.unix_datagram.mode = "0222"', ["the sockets are bound at the start"]),
        (
            "",
            'slab.size = "8m"',
            ["a slab keeps its sizes until a shutdown that delivers everything"],
        ),
        (
            "",
            'batching.topics."a b" = { action = "per_topic", config = "quick" }',
            [
                'batching.topics."a b".action from absent to "per_topic"',
                'batching.topics."a b".config from absent to "quick"',
            ],
        ),
        ("batching.configs.slow = { messages = 7 }", "", ["batching.configs.slow.messages from 7 to absent"]),
        (
            'kafka.sasl = { mechanism = "OAUTHBEARER", token_command = ["/bin/token", "s3cret"] }',
            'kafka.sasl = { mechanism = "OAUTHBEARER", token_command = ["/bin/other"] }',
            ['kafka.sasl.token_command from "/bin/token" with arguments to "/bin/other"'],
        ),
    ],
)
def test_each_setting_that_differs_is_named_with_both_values(
    tmp_path: Path, before: str, after: str, found: list[str]
) -> None:
    texts = [str(change) for change in list_changes(*(config(tmp_path / "c", BASE + text) for text in (before, after)))]
    assert len(texts) == len(found)
    for text, expected in zip(texts, found, strict=True):
        assert expected in text
        assert "s3cret" not in text


def test_changed_map_entries_are_named(tmp_path: Path) -> None:
    after = BASE.replace("clicks", "views").replace("max_count = 0", "max_count = 1")
    found = [str(change) for change in list_changes(config(tmp_path / "c", BASE), config(tmp_path / "c", after))]
    assert sorted(found) == [
        "rate_limit.configs.few.max_count from 0 to 1",
        'rate_limit.topics.clicks from "few" to absent',
        'rate_limit.topics.views from absent to "few"',
    ]
