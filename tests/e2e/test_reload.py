"""Reloads in the whole daemon: each change takes effect, and no message is lost, doubled or reordered."""

from __future__ import annotations

import os
import random
import re
import threading
from base64 import b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Final, get_args, get_origin
from urllib.error import HTTPError

import msgspec
import pytest
from msgspec import Struct

from bruce_mp.cli import main
from bruce_mp.client.stream import StreamClient
from bruce_mp.config.fields import LIVE, setting_type
from bruce_mp.config.model import Config
from bruce_mp.devbroker.control import DevBroker
from support import processes
from support.daemon import Daemon
from support.processes import wait_until
from support.read_back import broker_fixture, read_back, values_in
from support.traffic import Load, assert_all_there, start_senders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bruce_mp.telemetry.books import Books

pytestmark = pytest.mark.process

TOPICS: Final = ("clicks", "views", "noise")
DAY_MS: Final = 24 * 3600 * 1000
broker = broker_fixture(brokers=2, topics=dict.fromkeys(TOPICS, 2), scope="module")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, broker: DevBroker) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("daemon")
    streams = {"input.unix_stream.enable": "true", "input.unix_stream.path": directory / "in.stream"}
    with Daemon(directory, broker.bootstrap, {**streams, "input.streams.workers": 1}) as daemon:
        send(daemon, "clicks", 1)
        daemon.wait_settled(1)
        yield daemon


@pytest.fixture
def daemon(started: Daemon) -> Iterator[Daemon]:
    """Yield the shared daemon with the configuration of its start."""
    started.reload({})
    yield started
    processes.long_lived_trees.add(started.pid)


def send(daemon: Daemon, topic: str, count: int, value: bytes = b"value", key: int | None = None) -> None:
    daemon.send(topic, *[value] * count, partition_key=key)


def settled(daemon: Daemon, before: Books, count: int) -> Books:
    """Return the books once `count` more messages were received and all are settled."""
    return daemon.wait_settled(before.received + count)


# --- every setting ----------------------------------------------------------------------------------------------------


def live_keys(model: type[Struct], prefix: str = "") -> Iterator[str]:
    """Yield the settings that a reload applies; `NAME` stands for any name."""
    for field in msgspec.structs.fields(model):
        setting = setting_type(field.type)
        kind, key = setting.type, f"{prefix}{field.name}"
        if get_origin(kind) is dict:
            kind, key = get_args(kind)[1], f"{key}.NAME"
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from live_keys(kind, f"{key}.")
        elif setting.reload_rule == LIVE:
            yield key


def other_values(directory: Path) -> tuple[Mapping[str, object], ...]:
    """Return values that differ from the start for every setting; each set is valid as a whole."""
    plain = {
        "kafka.client_id": "other",
        "kafka.replication_timeout_ms": 9000,
        "kafka.empty_values": "empty",
        "input.allow_large_datagrams": True,
        "input.max_stream_size": "1m",
        "input.unix_datagram.when_full": "block",
        "input.unix_datagram.allow_users": [str(os.getuid())],
        "input.unix_datagram.allow_groups": [str(os.getgid())],
        "input.unix_stream.allow_users": [str(os.getuid())],
        "input.unix_stream.allow_groups": [str(os.getgid())],
        "input.quota.interval_ms": 500,
        "input.quota.max_messages": 1000,
        "input.quota.tcp_max_messages": 1000,
        "input.quota.users.0": 1000,
        "input.tcp.loopback_only": False,
        "input.streams.when_full": "discard",
        "input.streams.max_attempt_size": "1m",
        "input.streams.max_spill_size": "64m",
        "input.streams.max_connections_per_user": 100,
        "input.streams.max_unfinished_size": "64m",
        "input.streams.max_unfinished_size_per_user": "32m",
        "input.streams.unfinished_timeout_s": 30,
        "partitioner.default": "crc32",
        "partitioner.topics.views": "murmur2",
        "partitioner.without_leader": "next",
        "slab.sync_interval_ms": 500,
        "events.command": ["/bin/true"],
        "events.interval_s": 5,
        "events.timeout_s": 2,
        "delivery.topic_autocreate": True,
        "delivery.topic_autocreate_partitions": 2,
        "delivery.topic_autocreate_replication": 1,
        "delivery.max_failed_attempts": 1000,
        "delivery.start_spread_s": 5,
        "delivery.failover_spread_s": 1,
        "delivery.max_in_flight": 3,
        "delivery.shutdown_max_delay_ms": 20_000,
        "delivery.dispatcher_restart_max_delay_ms": 4000,
        "delivery.metadata_refresh_interval_min": 7,
        "delivery.compare_metadata_on_refresh": False,
        "delivery.kafka_socket_timeout_s": 30,
        "delivery.pause_rate_limit_initial_ms": 60,
        "delivery.pause_rate_limit_max_double": 3,
        "delivery.min_pause_delay_ms": 40,
        "batching.produce_request_data_limit": "512k",
        "batching.message_max_bytes": 500_000,
        "batching.configs.quick.time_ms": 20,
        "batching.configs.quick.messages": 10,
        "batching.configs.quick.bytes": "64k",
        "batching.combined.enable": False,
        "batching.combined.config": "quick",
        "batching.default.action": "per_topic",
        "batching.default.config": "quick",
        "batching.topics.views.action": "per_topic",
        "batching.topics.views.config": "quick",
        "compression.size_threshold_percent": 90,
        "compression.default": "small",
        "compression.configs.small.type": "gzip",
        "compression.configs.small.min_size": 1,
        "compression.configs.small.level": 3,
        "compression.configs.small.adaptive": True,
        "compression.topics.views": "small",
        "rate_limit.default": "many",
        "rate_limit.configs.many.interval_ms": 1000,
        "rate_limit.configs.many.max_count": 1000,
        "rate_limit.topics.views": "many",
        "http.allowed_hosts": ["pages.example"],
        "http.stalled_after_s": 10,
        "http.discard_report_interval_s": 300,
        "http.bad_msg_prefix_size": 10,
        "http.metrics_topics": 20,
        "discards.topic": "dead-letters",
        "discard_log.enable": True,
        "discard_log.path": f"{directory}/discards",
        "discard_log.max_file_size": "32m",
        "discard_log.max_archive_size": "32m",
        "discard_log.max_msg_prefix_size": 100,
        "msg_debug.enable": True,
        "msg_debug.path": f"{directory}/debug",
        "msg_debug.time_limit_s": 10,
        "msg_debug.byte_limit": "1m",
        "logging.level": "DEBUG",
        "logging.stdout_stderr": False,
        "input.unix_datagram.timestamps": "client",
        "input.streams.timestamps": "arrival",
        "timestamps.policy": "arrival",
        "timestamps.before_max_ms": 1000,
        "timestamps.after_max_ms": 1000,
        "timestamps.topics.old": "client",
        "topic_share.alpha": 4,
        "topic_share.topics.views.alpha": 32,
        "logging.format": "json",
        "logging.syslog": True,
        "logging.journald": True,
        "logging.log_discards": False,
        "logging.file.enable": True,
        "logging.file.path": f"{directory}/other-log",
        "logging.file.mode": "0640",
    }
    secure = {
        "kafka.tls.enable": True,
        "kafka.tls.ca_file": f"{directory}/ca",
        "kafka.tls.certificate_file": f"{directory}/certificate",
        "kafka.tls.key_file": f"{directory}/key",
        "kafka.tls.verify_host_name": False,
        "kafka.tls.min_version": "1.3",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
    }
    login = {"kafka.sasl.mechanism": "OAUTHBEARER"}
    kerberos = {
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos_principal": "bruce@EXAMPLE.COM",
        "kafka.sasl.kerberos_keytab_file": f"{directory}/keytab",
        "kafka.sasl.kerberos_service_name": "other",
    }
    return (
        plain,
        secure | {"kafka.tls.key_password_file": f"{directory}/password", "kafka.sasl.password_file": f"{directory}/p"},
        secure | {"kafka.tls.key_password_env": "HOME", "kafka.sasl.password_env": "HOME"},
        login | {"kafka.sasl.token_file": f"{directory}/token"},
        login | {"kafka.sasl.token_command": ["/bin/false", "a secret"], "kafka.sasl.extensions.cluster": "one"},
        kerberos,
        {"kafka.broker_version": "2.0", "http.token_file": f"{directory}/token"},
        {"http.token_env": "HOME"},
    )


def test_every_setting_that_a_reload_applies_can_be_changed_and_changed_back(
    tmp_path: Path, daemon: Daemon, broker: DevBroker
) -> None:
    before, changed, token = daemon.books(), set[str](), "none"
    (tmp_path / "token").write_text("for-changes")
    tokens = {"http.token_file": "for-changes", "http.token_env": os.environ["HOME"]}
    servers = {"kafka.bootstrap_servers": [*reversed(broker.bootstrap.split(","))]}
    sets = (*other_values(tmp_path), servers)
    for settings in sets:
        text = daemon.reload(settings, token)
        token = next((tokens[key] for key in tokens if key in settings), "none")
        changed.update(re.sub(r"\.(configs|topics|users|extensions)\.\w+", r".\1.NAME", key) for key in keys_in(text))
        send(daemon, "clicks", 1)
    assert changed == set(live_keys(Config))
    assert len(keys_in(daemon.reload({}))) == 1
    assert settled(daemon, before, len(sets)).delivered == before.delivered + len(sets)
    assert "a secret" not in daemon.log()


def keys_in(text: str) -> list[str]:
    return text.rstrip(".\n").partition(": ")[2].split(", ")


# --- a proof for each section -----------------------------------------------------------------------------------------


def test_reloaded_batching_limits_apply_to_an_open_batch(daemon: Daemon) -> None:
    hundred = {
        "batching.configs.hundred.messages": 100,
        "batching.default.action": "per_topic",
        "batching.default.config": "hundred",
    }
    for key, gatherer in ((None, "router"), (1, "queued")):
        daemon.reload(hundred)
        before = daemon.books()
        send(daemon, "views", 5, key=key)
        daemon.wait_for(lambda: daemon.books().held[gatherer] == 5, "the messages to gather", 20)  # noqa: B023
        daemon.reload(hundred | {"batching.configs.hundred.messages": 50})
        settled(daemon, before, 5)
        send(daemon, "views", 49, key=key)
        daemon.wait_for(lambda: daemon.books().held[gatherer] == 49, "the messages to gather", 20)  # noqa: B023
        send(daemon, "views", 1, key=key)
        settled(daemon, before, 55)


def test_reloaded_compression_applies(daemon: Daemon) -> None:
    for codec in ("gzip", "lz4"):
        daemon.reload(
            {
                "compression.configs.c.type": codec,
                "compression.topics.views": "c",
                "batching.default.action": "none",
            }
        )
        before = daemon.books()
        send(daemon, "views", 1, b"x" * 2000)
        settled(daemon, before, 1)
        daemon.wait_for(lambda: codec in codecs(daemon), f"{codec} on the page", 20)  # noqa: B023 - called at once


def codecs(daemon: Daemon) -> set[str]:
    return {str(value) for line in daemon.get("/compression/json")["topics"] for value in line.values()}


def test_reloaded_rate_limits_apply(daemon: Daemon) -> None:
    limit = {
        "rate_limit.configs.few.interval_ms": DAY_MS,
        "rate_limit.configs.few.max_count": 3,
        "rate_limit.topics.noise": "few",
    }
    before = daemon.books()
    for settings, passed in (({}, 10), (limit, 13), ({**limit, "rate_limit.configs.few.max_count": 5}, 18), ({}, 28)):
        daemon.reload(settings)
        received = daemon.books().received
        send(daemon, "noise", 10)
        assert daemon.wait_settled(received + 10).delivered == before.delivered + passed


def test_a_reloaded_message_size_limit_applies(daemon: Daemon) -> None:
    before = daemon.books()
    daemon.reload({"batching.message_max_bytes": 1000})
    send(daemon, "views", 1, bytes(2000))
    assert settled(daemon, before, 1).discarded.get("LONG_MSG", 0) == before.discarded.get("LONG_MSG", 0) + 1
    daemon.reload({})
    send(daemon, "views", 1, bytes(2000))
    assert settled(daemon, before, 2).delivered == before.delivered + 1


def test_a_reloaded_stream_size_limit_applies(daemon: Daemon) -> None:
    before = daemon.books()
    daemon.reload({"input.max_stream_size": 1000})
    with StreamClient(daemon.stream_path, timeout=20) as client:
        client.send("views", bytes(2000))
        wait_until(
            lambda: daemon.books().discarded.get("MALFORMED", 0) > before.discarded.get("MALFORMED", 0), "refusal"
        )
    daemon.reload({})
    with StreamClient(daemon.stream_path, timeout=20) as client:
        client.send("views", bytes(2000))
        settled(daemon, before, 2)


def test_reloaded_logging_applies_to_every_process(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "log"
    daemon.reload({"logging.file.enable": True, "logging.file.path": str(file)})
    daemon.kill("router")
    wait_until(lambda: "Process router is ready" in file.read_text(), "the supervisor's line in the new file")
    send(daemon, "nobody-made-this", 1)
    wait_until(lambda: "bruce[router" in file.read_text(), "a line of the router")
    daemon.reload({"logging.level": "CRIT", "logging.file.enable": True, "logging.file.path": str(file)})
    length = len(file.read_text())
    daemon.kill("router")
    send(daemon, "nobody-made-this", 1)
    daemon.wait_settled(daemon.books().received)
    assert len(file.read_text()) == length


def test_a_reloaded_discard_file_is_written(daemon: Daemon, tmp_path: Path) -> None:
    for name in ("one", "other"):
        before = daemon.books()
        file = tmp_path / name
        daemon.reload({"discard_log.enable": True, "discard_log.path": str(file)})
        send(daemon, f"nobody-made-{name}", 1, b"keep me")
        settled(daemon, before, 1)
        wait_until(lambda: file.exists() and f"nobody-made-{name}" in file.read_text(), "the line")  # noqa: B023
    assert "nobody-made-other" not in (tmp_path / "one").read_text()


def test_reloaded_message_debugging_applies(daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(HTTPError, match="409"):
        daemon.get_text("/msg_debug/add_topic/views")
    daemon.reload({"msg_debug.enable": True, "msg_debug.path": str(tmp_path)})
    before = daemon.books()
    daemon.get_text("/msg_debug/add_topic/views")
    send(daemon, "views", 1)
    settled(daemon, before, 1)
    wait_until((tmp_path / "msg_got_ack").exists, "the copy")
    daemon.reload({})
    with pytest.raises(HTTPError, match="409"):
        daemon.get_text("/msg_debug/get_topics")


def test_a_reloaded_sample_size_applies_to_bad_messages(daemon: Daemon) -> None:
    for size in (5, 9):
        daemon.reload({"http.bad_msg_prefix_size": size, "http.discard_report_interval_s": 86_000 + size})
        daemon.send_encoded(b"x" * 20)
        sample = b64encode(b"x" * size).decode()
        daemon.wait_for(lambda: sample in recent_malformed(daemon), "the sample", 20)  # noqa: B023
        assert daemon.get("/discards/json")["interval"] == 86_000 + size


def recent_malformed(daemon: Daemon) -> list[str]:
    found: list[str] = daemon.get("/discards/json")["unfinished_report"]["recent_malformed"]
    return found


def test_reloaded_automatic_topic_creation_applies(daemon: Daemon) -> None:
    before = daemon.books()
    send(daemon, "made-later", 1)
    assert settled(daemon, before, 1).delivered == before.delivered
    daemon.reload({"delivery.topic_autocreate": True})
    send(daemon, "made-later", 1)
    assert settled(daemon, before, 2).delivered == before.delivered + 1


def test_reloaded_brokers_get_the_next_messages(tmp_path: Path, broker: DevBroker) -> None:
    """Messages go to the newly configured brokers, even of another cluster."""
    with (
        DevBroker(brokers=3, topics={"clicks": 3}) as other,
        Daemon(tmp_path, broker.bootstrap) as daemon,
    ):
        send(daemon, "clicks", 1, b"there")
        daemon.wait_settled(1)
        daemon.reload({"kafka.bootstrap_servers": other.bootstrap.split(",")})
        daemon.wait_for(lambda: knows(daemon, other), "the other cluster's brokers", 30)
        send(daemon, "clicks", 3, b"here")
        daemon.wait_settled(4)
        assert values_in(other, "clicks") == [b"here"] * 3
        daemon.reload({"kafka.bootstrap_servers": ["127.0.0.1:1"]})
        daemon.reload({"kafka.bootstrap_servers": broker.bootstrap.split(",")})
        daemon.wait_for(lambda: knows(daemon, broker), "the first cluster's brokers", 30)
        send(daemon, "clicks", 1, b"back")
        daemon.wait_settled(5)
        assert b"back" in values_in(broker, "clicks")


def knows(daemon: Daemon, cluster: DevBroker) -> bool:
    """Return True if the last metadata came from this cluster."""
    found = {line["address"] for line in daemon.get("/brokers/json")["brokers"]}
    return set(cluster.bootstrap.split(",")) <= found


def test_a_reloaded_client_id_reopens_broker_connections(daemon: Daemon, broker: DevBroker) -> None:
    before, connected = daemon.books(), daemon.counters()["ConnectorConnectSuccess"]
    daemon.reload({"kafka.client_id": "another-name", "kafka.replication_timeout_ms": 4321})
    send(daemon, "views", 4)
    settled(daemon, before, 4)
    assert daemon.counters()["ConnectorConnectSuccess"] > connected
    statistics = broker.statistics()
    assert statistics.client_ids["another-name"] > 0
    assert statistics.timeouts_ms[4321] > 0
    assert daemon.books().possible_duplicates == before.possible_duplicates


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_reload_command_prints_its_outcome(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--config", str(daemon.config_path)]
    daemon.configure({"logging.level": "DEBUG"})
    assert main(["reload", *where, "--check"]) == 0
    assert capsys.readouterr().out == 'It would be applied:\n  logging.level from "INFO" to "DEBUG"\n'
    assert main(["reload", *where]) == 0
    assert capsys.readouterr().out == f"Reloaded {daemon.config_path}: logging.level.\n"
    # The command finds the daemon although the file names another address.
    daemon.configure({"http.listen": "127.0.0.1:1"})
    assert main(["reload", *where]) == 1
    assert "Reload refused: http.listen" in capsys.readouterr().err
    daemon.configure({"http.listen": "nowhere"})
    assert main(["reload", *where]) == 1
    assert 'http.listen = "nowhere" is not allowed' in capsys.readouterr().err


def test_the_reload_command_reports_an_absent_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reload", "--url", f"unix:{tmp_path}/nobody"]) == 4
    assert "No daemon answers" in capsys.readouterr().err


# --- under load -------------------------------------------------------------------------------------------------------

BACK_AND_FORTH: Final[tuple[Mapping[str, object], ...]] = (
    {},
    {
        "batching.default.action": "none",
        "compression.configs.c.type": "gzip",
        "compression.default": "c",
        "kafka.client_id": "one",
    },
    {
        "batching.configs.many.time_ms": 500,
        "batching.configs.many.messages": 300,
        "batching.default.action": "per_topic",
        "batching.default.config": "many",
        "compression.configs.c.type": "lz4",
        "compression.default": "c",
        "batching.produce_request_data_limit": "16k",
        "delivery.max_in_flight": 1,
        "delivery.metadata_refresh_interval_min": 1,
    },
    {
        "batching.configs.few.time_ms": 50,
        "batching.combined.config": "few",
        "kafka.client_id": "two",
        "rate_limit.configs.all.interval_ms": DAY_MS,
        "rate_limit.configs.all.max_count": 1_000_000,
        "rate_limit.default": "all",
        "logging.level": "NOTICE",
    },
)


class Reloading(threading.Thread):
    """A thread that reloads a daemon every 100 ms until it is stopped."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self._daemon_ = daemon
        self._over = threading.Event()
        self.applied = 0

    def run(self) -> None:
        turn = 0
        while not self._over.wait(0.1):
            turn += 1
            with suppress(OSError):  # the status process is killed, too
                self._daemon_.reload(BACK_AND_FORTH[turn % len(BACK_AND_FORTH)])
                self.applied += 1

    def stop(self) -> None:
        self._over.set()
        self.join(60)


def test_reloads_under_load_with_killed_processes_lose_or_reorder_nothing(tmp_path: Path) -> None:
    load = Load(TOPICS, senders=2, messages=8000, largest=500)
    settings = {"input.unix_datagram.when_full": "block"}
    rng = random.Random(8)
    with (
        DevBroker(brokers=2, topics=dict.fromkeys(TOPICS, 3)) as broker,
        Daemon(tmp_path, broker.bootstrap, settings) as daemon,
    ):
        reloading = Reloading(daemon)
        reloading.start()
        senders = start_senders(load, daemon.socket_path)
        for share in range(1, 7):
            daemon.wait_received(load.total * share // 8, 120)
            daemon.kill(rng.choice(["input", "router", "dispatcher-0", "dispatcher-1", "status"]))
        for sender in senders:
            assert sender.wait(120) == 0
        reloading.stop()
        assert reloading.applied > 5
        daemon.reload({})
        books = daemon.wait_settled(load.total, 120)
        assert books.received == books.delivered == load.total
        assert_all_there(load, read_back(broker, TOPICS))
