"""Table of the old settings that map to one new setting: old element or option, new key, and parser of the value.

`sections.py` converts the others: batching, compression, rate limits, brokers, and the address of the status pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.cli.importing.old_values import (
    boolean,
    equals_word,
    integer,
    integer_with_suffix,
    kibibytes,
    log_level,
    mode,
    option_mode,
    port,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REMOVED_OPTIONS", "SETTINGS", "RemovedOption", "Setting"]


class Setting(NamedTuple):
    """Mapping of one old setting to the setting `key`.

    `xml_path` is the place of the old setting below the root of the XML, as `element/element@attribute`. `parse_xml`
    converts the attribute; if it returns None, the TOML omits the setting. `option` is the option of the old command
    line, without dashes, and `parse_option` converts the option's value. An option without `parse_option` is a switch,
    and sets `switch_value`. `note` goes to the TOML, above the setting.
    """

    key: str
    xml_path: str = ""
    parse_xml: Callable[[str], object] = str
    option: str = ""
    parse_option: Callable[[str], object] | None = None
    switch_value: object = True
    note: str = ""


class RemovedOption(NamedTuple):
    """An old command-line option without a new setting; the TOML gets a comment with its name and `note`."""

    note: str
    has_value: bool = False


SLAB_NOTE: Final = (
    "The old buffer held only keys and values. The slab also holds topics and headers, and survives a crash. If "
    "messages are small, choose a larger slab, because each also needs a header."
)
FAILED_NOTE: Final = (
    "If you remove this line, the daemon retries without limit, as long as the cluster and not the message causes the "
    "failures."
)
PAUSE_NOTE: Final = (
    "The old daemon paused all traffic, this one only the affected partitions or broker: remove the line for the "
    "shorter default."
)


def _size_or_unlimited(raw: str) -> object:
    return None if equals_word(raw, "unlimited") else size(raw)


SETTINGS: Final = (
    # inputs
    Setting("input.unix_datagram.enable", "inputSources/unixDatagram@enable", boolean),
    Setting("input.unix_datagram.path", "inputSources/unixDatagram/path@value", str, "receive_socket_name", str),
    Setting(
        "input.unix_datagram.mode", "inputSources/unixDatagram/mode@value", mode, "receive_socket_mode", option_mode
    ),
    Setting("input.unix_stream.enable", "inputSources/unixStream@enable", boolean),
    Setting("input.unix_stream.path", "inputSources/unixStream/path@value", str, "receive_stream_socket_name", str),
    Setting(
        "input.unix_stream.mode", "inputSources/unixStream/mode@value", mode, "receive_stream_socket_mode", option_mode
    ),
    Setting("input.tcp.enable", "inputSources/tcp@enable", boolean),
    Setting("input.tcp.port", "inputSources/tcp/port@value", port, "input_port", integer),
    Setting("slab.size", "inputConfig/maxBuffer@value", size, "msg_buffer_max", kibibytes, note=SLAB_NOTE),
    Setting("input.max_datagram_size", "inputConfig/maxDatagramMsgSize@value", size, "max_input_msg_size", size),
    Setting(
        "input.allow_large_datagrams", "inputConfig/allowLargeUnixDatagrams@value", boolean,
        "allow_large_unix_datagrams",
    ),
    Setting("input.max_stream_size", "inputConfig/maxStreamMsgSize@value", size, "max_stream_input_msg_size", size),
    # delivery
    Setting("delivery.topic_autocreate", "msgDelivery/topicAutocreate@enable", boolean, "topic_autocreate"),
    Setting(
        "delivery.max_failed_attempts", "msgDelivery/maxFailedDeliveryAttempts@value", integer,
        "max_failed_delivery_attempts", integer, note=FAILED_NOTE,
    ),
    Setting(
        "delivery.shutdown_max_delay_ms", "msgDelivery/shutdownMaxDelay@value", integer,
        "shutdown_max_delay", integer, note="The slab keeps undelivered messages for the next start.",
    ),
    Setting(
        "delivery.dispatcher_restart_max_delay_ms", "msgDelivery/dispatcherRestartMaxDelay@value", integer,
        "dispatcher_restart_max_delay", integer,
    ),
    Setting(
        "delivery.metadata_refresh_interval_min", "msgDelivery/metadataRefreshInterval@value", integer,
        "metadata_refresh_interval", integer,
    ),
    Setting(
        "delivery.compare_metadata_on_refresh", "msgDelivery/compareMetadataOnRefresh@value", boolean,
        "skip_compare_metadata_on_refresh", switch_value=False,
    ),
    Setting(
        "delivery.kafka_socket_timeout_s", "msgDelivery/kafkaSocketTimeout@value", integer,
        "kafka_socket_timeout", integer,
    ),
    Setting(
        "delivery.pause_rate_limit_initial_ms", "msgDelivery/pauseRateLimitInitial@value", integer,
        "pause_rate_limit_initial", integer, note=PAUSE_NOTE,
    ),
    Setting(
        "delivery.pause_rate_limit_max_double", "msgDelivery/pauseRateLimitMaxDouble@value", integer,
        "pause_rate_limit_max_double", integer,
    ),
    Setting(
        "delivery.min_pause_delay_ms", "msgDelivery/minPauseDelay@value", integer,
        "min_pause_delay", integer, note=PAUSE_NOTE,
    ),
    # status pages
    Setting(
        "http.discard_report_interval_s", "httpInterface/discardReportInterval@value", integer,
        "discard_report_interval", integer,
    ),
    Setting(
        "http.bad_msg_prefix_size", "httpInterface/badMsgPrefixSize@value", integer_with_suffix,
        "discard_report_bad_msg_prefix_size", integer,
    ),
    # discard log
    Setting("discard_log.enable", "discardLogging@enable", boolean),
    Setting("discard_log.path", "discardLogging/path@value", str, "discard_log_path", str),
    Setting(
        "discard_log.max_file_size", "discardLogging/maxFileSize@value", size, "discard_log_max_file_size", kibibytes
    ),
    Setting(
        "discard_log.max_archive_size", "discardLogging/maxArchiveSize@value", size,
        "discard_log_max_archive_size", kibibytes,
    ),
    Setting(
        "discard_log.max_msg_prefix_size", "discardLogging/maxMsgPrefixSize@value", _size_or_unlimited,
        "discard_log_bad_msg_prefix_size", size,
    ),
    Setting("discard_log.max_msg_prefix_size", "discardLogging/badMsgPrefixSize@value", size),  # of early Dory
    # Kafka
    Setting("kafka.client_id", "kafkaConfig/clientId@value", str, "client_id", str),
    Setting(
        "kafka.replication_timeout_ms", "kafkaConfig/replicationTimeout@value", integer, "replication_timeout", integer
    ),
    Setting("kafka.required_acks", option="required_acks", parse_option=integer),
    # message debugging
    Setting("msg_debug.enable", "msgDebug@enable", boolean),
    Setting("msg_debug.path", "msgDebug/path@value", str, "debug_dir", str),
    Setting("msg_debug.time_limit_s", "msgDebug/timeLimit@value", integer, "msg_debug_time_limit", integer),
    Setting("msg_debug.byte_limit", "msgDebug/byteLimit@value", size, "msg_debug_byte_limit", size),
    # logging
    Setting("logging.level", "logging/level@value", log_level, "log_level", log_level),
    Setting("logging.stdout_stderr", "logging/stdoutStderr@enable", boolean, "log_echo"),
    Setting("logging.syslog", "logging/syslog@enable", boolean),
    Setting("logging.log_discards", "logging/logDiscards@enable", boolean, "no_log_discard", switch_value=False),
    Setting("logging.file.enable", "logging/file@enable", boolean),
    Setting("logging.file.path", "logging/file/path@value"),
    Setting("logging.file.mode", "logging/file/mode@value", mode),
)  # fmt: skip

NEGOTIATED: Final = "the daemon negotiates versions with each broker. For brokers before 0.10 set kafka.broker_version."
LEGACY: Final = "the older message formats are not supported. Change the clients that use them: see docs/protocol.md."

REMOVED_OPTIONS: Final = {
    "daemon": RemovedOption("the daemon stays in the foreground: run it under systemd or supervisord (see deploy/)."),
    "protocol_version": RemovedOption(NEGOTIATED, has_value=True),
    "metadata_api_version": RemovedOption(NEGOTIATED, has_value=True),
    "produce_api_version": RemovedOption(NEGOTIATED, has_value=True),
    "retry_on_unknown_partition": RemovedOption("the daemon always retries when a broker does not know a partition."),
    "use_old_input_format": RemovedOption(LEGACY),
    "use_old_output_format": RemovedOption(LEGACY),
    "omit_timestamp": RemovedOption(LEGACY),
    "version": RemovedOption("it printed the version; `bruce --version` does so now."),
    "help": RemovedOption("it printed the usage; `bruce --help` does so now."),
}
