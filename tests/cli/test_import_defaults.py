"""`bruce import-config` accepts what the old daemons accept, and keeps or reports their defaults."""

from __future__ import annotations

import tomllib
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.cli.importing.command_line import parse_options
from bruce_mp.cli.importing.convert import convert
from bruce_mp.cli.importing.settings import SETTINGS
from bruce_mp.config.load import load_config
from bruce_mp.errors import ConfigError
from support.old_configs import BROKERS, DATAGRAM, bruce, dory, ours

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("value", ["", None])
@pytest.mark.parametrize(
    ("section", "element", "attribute"),
    [
        ("input.unix_stream", "unixStream", "path"),
        ("input.tcp", "tcp", "port"),
        ("discard_log", "discardLogging", "path"),
        ("msg_debug", "msgDebug", "path"),
        ("logging.file", "file", "path"),
    ],
)
def test_a_section_without_a_path_or_port_is_disabled(
    section: str, element: str, attribute: str, value: str | None
) -> None:
    target = "" if value is None else f'<{attribute} value="{value}"/>'
    enabled = f'<{element} enable="true">{target}</{element}>'
    parents = {"unixStream": "inputSources", "tcp": "inputSources", "file": "logging"}
    inputs = DATAGRAM
    if element in parents:
        enabled = f"<{parents[element]}>{enabled}</{parents[element]}>"
    if parents.get(element) == "inputSources":
        inputs, enabled = enabled.replace("<inputSources>", DATAGRAM.removesuffix("</inputSources>")), ""
    text = convert(dory(inputs, BROKERS, enabled), "old.xml", None)
    made: Any = tomllib.loads(text)
    for name in section.split("."):
        made = made[name]
    assert made == {"enable": False}
    assert f"# NOTE: It had no {attribute}, so the old daemon did not use it.\nenable = false" in text


def test_a_file_whose_only_input_has_an_empty_path_has_no_input() -> None:
    with pytest.raises(ConfigError, match="no input is enabled"):
        convert(dory(DATAGRAM.replace("/var/run/dory/in", ""), BROKERS), "old.xml", None)


def test_the_path_of_a_disabled_section_may_be_invalid() -> None:
    stream = '<unixStream enable="false"><path value="s"/></unixStream></inputSources>'
    assert ours(dory(DATAGRAM.replace("</inputSources>", stream), BROKERS))["input"]["unix_stream"] == {"enable": False}


@pytest.mark.parametrize(
    ("section", "key", "note"),
    [
        ("<inputConfig><maxBuffer value='1m'/></inputConfig>", ("slab", "size", "8m"), "1m; it is raised to 8m"),
        (
            "<msgDelivery><pauseRateLimitInitial value='0'/></msgDelivery>",
            ("delivery", "pause_rate_limit_initial_ms", 1),
            "0; it is raised to 1",
        ),
        (
            "<msgDelivery><maxFailedDeliveryAttempts value='0'/></msgDelivery>",
            ("delivery", "max_failed_attempts", 1),
            "0; it is raised to 1",
        ),
        (
            "<msgDelivery><shutdownMaxDelay value='100000000'/></msgDelivery>",
            ("delivery", "shutdown_max_delay_ms", 86_400_000),
            "100000000; it is lowered to 86400000",
        ),
    ],
)
def test_a_number_outside_our_range_becomes_the_nearest(section: str, key: tuple[str, str, object], note: str) -> None:
    text = convert(dory(DATAGRAM, BROKERS, section), "old.xml", None)
    assert tomllib.loads(text)[key[0]][key[1]] == key[2]
    assert f"# NOTE: The old value was {note}, the nearest that is allowed." in text


def test_spaces_around_names_are_ignored() -> None:
    batching = (
        '<batching><namedConfigs><config name=" c "><time value="1"/></config></namedConfigs>'
        '<defaultTopic action=" perTopic " config="c"/></batching>'
    )
    made = ours(dory(DATAGRAM, BROKERS.replace("kafka-1", " kafka-1 "), batching))
    assert made["batching"]["default"] == {"action": "per_topic", "config": "c"}
    assert made["kafka"]["bootstrap_servers"] == ["kafka-1:9092"]


def test_words_in_any_case_and_a_space_before_a_suffix_are_accepted() -> None:
    batching = (
        '<batching><namedConfigs><config name="c"><time value="1"/><messages value="Disable"/><bytes value="256 K"/>'
        "</config></namedConfigs></batching>"
    )
    rates = (
        '<topicRateLimiting><namedConfigs><config name="all" interval="5" maxCount="UNLIMITED"/></namedConfigs>'
        "</topicRateLimiting>"
    )
    log = '<discardLogging enable="true"><path value="/d"/><maxMsgPrefixSize value="Unlimited"/></discardLogging>'
    made = ours(dory(DATAGRAM, BROKERS, batching, rates, log))
    assert made["batching"]["configs"] == {"c": {"time_ms": 1, "bytes": "256k"}}
    assert made["rate_limit"]["configs"] == {"all": {"interval_ms": 5}}
    assert "max_msg_prefix_size" not in made["discard_log"]


def test_an_unlimited_rate_needs_no_interval() -> None:
    rates = (
        '<topicRateLimiting><namedConfigs><config name="all" maxCount="unlimited"/></namedConfigs>'
        '<defaultTopic config="all"/></topicRateLimiting>'
    )
    assert ours(dory(DATAGRAM, BROKERS, rates))["rate_limit"]["configs"] == {"all": {"interval_ms": 1000}}


def test_a_broker_with_an_empty_port_has_the_default_port() -> None:
    assert ours(dory(DATAGRAM, BROKERS.replace("9092", "")))["kafka"]["bootstrap_servers"] == ["kafka-1:9002"]


OLD_DEFAULTS: dict[str, tuple[object, object]] = {
    "slab.size": (128 << 20, 256 << 20),
    "input.max_datagram_size": (65536, 65536),
    "input.allow_large_datagrams": (False, False),
    "input.max_stream_size": (2 << 20, 2 << 20),
    "delivery.topic_autocreate": (False, False),
    "delivery.max_failed_attempts": (5, 5),
    "delivery.shutdown_max_delay_ms": (30_000, 30_000),
    "delivery.dispatcher_restart_max_delay_ms": (5_000, 5_000),
    "delivery.metadata_refresh_interval_min": (15, 15),
    "delivery.compare_metadata_on_refresh": (True, True),
    "delivery.kafka_socket_timeout_s": (60, 60),
    "delivery.pause_rate_limit_initial_ms": (5_000, 5_000),
    "delivery.pause_rate_limit_max_double": (4, 4),
    "delivery.min_pause_delay_ms": (5_000, 5_000),
    "http.listen": ("0.0.0.0:9090", "0.0.0.0:9090"),
    "http.discard_report_interval_s": (600, 600),
    "http.bad_msg_prefix_size": (256, 256),
    "discard_log.max_file_size": (1 << 20, 1 << 20),
    "discard_log.max_archive_size": (32 << 20, 8 << 20),
    "discard_log.max_msg_prefix_size": (None, 256),
    "kafka.client_id": ("dory", "bruce"),
    "kafka.replication_timeout_ms": (10_000, 10_000),
    "kafka.required_acks": (-1, -1),
    "msg_debug.time_limit_s": (3_600, 3_600),
    "msg_debug.byte_limit": (2 << 20, 2 << 30),
    "logging.level": ("NOTICE", "NOTICE"),
    "logging.stdout_stderr": (False, False),
    "logging.syslog": (True, True),
    "logging.log_discards": (True, True),
}
"""The defaults of Dory's file, and of Bruce's command line, from their sources."""


@pytest.mark.parametrize("old", ["file", "options"])
def test_every_old_default_is_kept_or_has_a_note(tmp_path: Path, old: str) -> None:
    if old == "file":
        enabled = ("discardLogging", "msgDebug")
        sections = [f'<{name} enable="true"><path value="/var/log/{name}"/></{name}>' for name in enabled]
        text = convert(dory(DATAGRAM, BROKERS, *sections), "old.xml", None)
    else:
        line = "--receive_socket_name /in --discard_log_path /var/log/d --debug_dir /var/log/debug"
        text = convert(bruce(BROKERS), "old.xml", parse_options(line))
    file = tmp_path / "bruce.toml"
    file.write_text(text)
    config = load_config(file)
    differs = [key for key, defaults in OLD_DEFAULTS.items() if attrgetter(key)(config) != defaults[old == "options"]]
    notes = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    untold = [key for key in differs if key.rpartition(".")[2] not in notes and key != "discard_log.max_file_size"]
    assert untold == []
    assert "Raised from 1m: a file has room for twice the largest message" in notes
    assert set(differs) == {
        *("delivery.max_failed_attempts", "discard_log.max_file_size", "delivery.min_pause_delay_ms"),
        *("delivery.pause_rate_limit_initial_ms", "delivery.pause_rate_limit_max_double"),
    }


def test_the_last_command_line_of_dory_leaves_the_defaults_of_its_file() -> None:
    line = "/usr/bin/dory --daemon --config-path /etc/dory/dory_conf.xml"
    assert ours(dory(DATAGRAM, BROKERS), line) == ours(dory(DATAGRAM, BROKERS))


def test_the_table_of_old_defaults_has_every_setting() -> None:
    own = {setting.key for setting in SETTINGS if not setting.key.endswith((".enable", ".path", ".mode", ".port"))}
    assert own | {"http.listen"} == OLD_DEFAULTS.keys()
