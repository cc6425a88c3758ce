"""Table of the old settings that map to one setting: old element or option, new key, and notation of the value.

`sections.py` converts the others (batching, compression, rate limits, brokers, the address of the status pages).
`WITHOUT_COUNTERPART` lists options that have no equivalent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.cli.importing.old_values import (
    flag_mode,
    integer,
    is_word,
    kibibytes,
    log_level,
    mode,
    port,
    scaled_integer,
    size,
    switch,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SETTINGS", "WITHOUT_COUNTERPART", "Setting"]


class Setting(NamedTuple):
    """Mapping of one setting.

    `xml_path` is element and attribute below the root; `flag` is the option of the old command line, without dashes.
    `flag_read` is None for a switch, which stands for `flag_value`. A value for which `read` returns None is omitted.
    """

    key: str
    xml_path: str = ""
    read: Callable[[str], object] = text
    flag: str = ""
    flag_read: Callable[[str], object] | None = None
    flag_value: object = True
    note: str = ""


SLAB_NOTE: Final = (
    "The old buffer held only keys and values. The slab also holds topics and headers, and survives a crash. Make it "
    "larger for small messages."
)
FAILED_NOTE: Final = "Remove the line to retry without limit while the cluster is the cause."
PAUSE_NOTE: Final = (
    "The old daemon paused all traffic, this one only the affected partitions or broker: remove the line for the "
    "shorter default."
)


def _unlimited(raw: str) -> object:
    return None if is_word(raw, "unlimited") else size(raw)


SETTINGS: Final = (
    # inputs
    Setting("input.unix_datagram.enable", "inputSources/unixDatagram@enable", switch),
    Setting(
        "input.unix_datagram.path",
        "inputSources/unixDatagram/path@value",
        flag="receive_socket_name",
        flag_read=text,
    ),
    Setting(
        "input.unix_datagram.mode",
        "inputSources/unixDatagram/mode@value",
        mode,
        flag="receive_socket_mode",
        flag_read=flag_mode,
    ),
    Setting("input.unix_stream.enable", "inputSources/unixStream@enable", switch),
    Setting(
        "input.unix_stream.path",
        "inputSources/unixStream/path@value",
        flag="receive_stream_socket_name",
        flag_read=text,
    ),
    Setting(
        "input.unix_stream.mode",
        "inputSources/unixStream/mode@value",
        mode,
        flag="receive_stream_socket_mode",
        flag_read=flag_mode,
    ),
    Setting("input.tcp.enable", "inputSources/tcp@enable", switch),
    Setting("input.tcp.port", "inputSources/tcp/port@value", port, flag="input_port", flag_read=integer),
    Setting(
        "slab.size", "inputConfig/maxBuffer@value", size, flag="msg_buffer_max", flag_read=kibibytes, note=SLAB_NOTE
    ),
    Setting(
        "input.max_datagram_size",
        "inputConfig/maxDatagramMsgSize@value",
        size,
        flag="max_input_msg_size",
        flag_read=size,
    ),
    Setting(
        "input.allow_large_datagrams",
        "inputConfig/allowLargeUnixDatagrams@value",
        switch,
        flag="allow_large_unix_datagrams",
    ),
    Setting(
        "input.max_stream_size",
        "inputConfig/maxStreamMsgSize@value",
        size,
        flag="max_stream_input_msg_size",
        flag_read=size,
    ),
    # delivery
    Setting("delivery.topic_autocreate", "msgDelivery/topicAutocreate@enable", switch, flag="topic_autocreate"),
    Setting(
        "delivery.max_failed_attempts",
        "msgDelivery/maxFailedDeliveryAttempts@value",
        integer,
        flag="max_failed_delivery_attempts",
        flag_read=integer,
        note=FAILED_NOTE,
    ),
    Setting(
        "delivery.shutdown_max_delay_ms",
        "msgDelivery/shutdownMaxDelay@value",
        integer,
        flag="shutdown_max_delay",
        flag_read=integer,
        note="The slab keeps undelivered messages for the next start.",
    ),
    Setting(
        "delivery.dispatcher_restart_max_delay_ms",
        "msgDelivery/dispatcherRestartMaxDelay@value",
        integer,
        flag="dispatcher_restart_max_delay",
        flag_read=integer,
    ),
    Setting(
        "delivery.metadata_refresh_interval_min",
        "msgDelivery/metadataRefreshInterval@value",
        integer,
        flag="metadata_refresh_interval",
        flag_read=integer,
    ),
    Setting(
        "delivery.compare_metadata_on_refresh",
        "msgDelivery/compareMetadataOnRefresh@value",
        switch,
        flag="skip_compare_metadata_on_refresh",
        flag_value=False,
    ),
    Setting(
        "delivery.kafka_socket_timeout_s",
        "msgDelivery/kafkaSocketTimeout@value",
        integer,
        flag="kafka_socket_timeout",
        flag_read=integer,
    ),
    Setting(
        "delivery.pause_rate_limit_initial_ms",
        "msgDelivery/pauseRateLimitInitial@value",
        integer,
        flag="pause_rate_limit_initial",
        flag_read=integer,
        note=PAUSE_NOTE,
    ),
    Setting(
        "delivery.pause_rate_limit_max_double",
        "msgDelivery/pauseRateLimitMaxDouble@value",
        integer,
        flag="pause_rate_limit_max_double",
        flag_read=integer,
    ),
    Setting(
        "delivery.min_pause_delay_ms",
        "msgDelivery/minPauseDelay@value",
        integer,
        flag="min_pause_delay",
        flag_read=integer,
        note=PAUSE_NOTE,
    ),
    # status pages
    Setting(
        "http.discard_report_interval_s",
        "httpInterface/discardReportInterval@value",
        integer,
        flag="discard_report_interval",
        flag_read=integer,
    ),
    Setting(
        "http.bad_msg_prefix_size",
        "httpInterface/badMsgPrefixSize@value",
        scaled_integer,
        flag="discard_report_bad_msg_prefix_size",
        flag_read=integer,
    ),
    # discard log
    Setting("discard_log.enable", "discardLogging@enable", switch),
    Setting("discard_log.path", "discardLogging/path@value", flag="discard_log_path", flag_read=text),
    Setting(
        "discard_log.max_file_size",
        "discardLogging/maxFileSize@value",
        size,
        flag="discard_log_max_file_size",
        flag_read=kibibytes,
    ),
    Setting(
        "discard_log.max_archive_size",
        "discardLogging/maxArchiveSize@value",
        size,
        flag="discard_log_max_archive_size",
        flag_read=kibibytes,
    ),
    Setting(
        "discard_log.max_msg_prefix_size",
        "discardLogging/maxMsgPrefixSize@value",
        _unlimited,
        flag="discard_log_bad_msg_prefix_size",
        flag_read=size,
    ),
    Setting("discard_log.max_msg_prefix_size", "discardLogging/badMsgPrefixSize@value", size),  # Dory at first
    # Kafka
    Setting("kafka.client_id", "kafkaConfig/clientId@value", flag="client_id", flag_read=text),
    Setting(
        "kafka.replication_timeout_ms",
        "kafkaConfig/replicationTimeout@value",
        integer,
        flag="replication_timeout",
        flag_read=integer,
    ),
    Setting("kafka.required_acks", flag="required_acks", flag_read=integer),
    # message debugging
    Setting("msg_debug.enable", "msgDebug@enable", switch),
    Setting("msg_debug.path", "msgDebug/path@value", flag="debug_dir", flag_read=text),
    Setting(
        "msg_debug.time_limit_s",
        "msgDebug/timeLimit@value",
        integer,
        flag="msg_debug_time_limit",
        flag_read=integer,
    ),
    Setting("msg_debug.byte_limit", "msgDebug/byteLimit@value", size, flag="msg_debug_byte_limit", flag_read=size),
    # logging
    Setting("logging.level", "logging/level@value", log_level, flag="log_level", flag_read=log_level),
    Setting("logging.stdout_stderr", "logging/stdoutStderr@enable", switch, flag="log_echo"),
    Setting("logging.syslog", "logging/syslog@enable", switch),
    Setting("logging.log_discards", "logging/logDiscards@enable", switch, flag="no_log_discard", flag_value=False),
    Setting("logging.file.enable", "logging/file@enable", switch),
    Setting("logging.file.path", "logging/file/path@value"),
    Setting("logging.file.mode", "logging/file/mode@value", mode),
)

NEGOTIATED: Final = "the daemon negotiates versions with each broker. For brokers before 0.10 set kafka.broker_version."
LEGACY: Final = "the older message formats are not supported. Change the clients that use them: see docs/protocol.md."

WITHOUT_COUNTERPART: Final = {
    "daemon": (False, "the daemon stays in the foreground: run it under systemd or supervisord (see deploy/)."),
    "protocol_version": (True, NEGOTIATED),
    "metadata_api_version": (True, NEGOTIATED),
    "produce_api_version": (True, NEGOTIATED),
    "retry_on_unknown_partition": (False, "the daemon always retries when a broker does not know a partition."),
    "use_old_input_format": (False, LEGACY),
    "use_old_output_format": (False, LEGACY),
    "omit_timestamp": (False, LEGACY),
    "version": (False, "it printed the version; `bruce --version` does so now."),
    "help": (False, "it printed the usage; `bruce --help` does so now."),
}
"""Options without an equivalent: a flag for options with a value, and a note."""
