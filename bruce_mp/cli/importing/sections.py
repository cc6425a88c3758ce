"""Conversion of XML sections that map to several settings: batching, compression, rate limits, HTTP, brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from bruce_mp.cli.importing.old_values import boolean, equals_word, integer, integer_with_suffix, port, size, stripped

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.cli.importing.draft import Draft
    from bruce_mp.cli.importing.old_xml import Element

__all__ = ["SECTION_ATTRIBUTES", "AttributeReader", "read_sections"]

SECTION_ATTRIBUTES: Final = {
    "batching": (),
    "batching/namedConfigs": (),
    "batching/namedConfigs/config": ("name",),
    "batching/namedConfigs/config/time": ("value",),
    "batching/namedConfigs/config/messages": ("value",),
    "batching/namedConfigs/config/bytes": ("value",),
    "batching/produceRequestDataLimit": ("value",),
    "batching/messageMaxBytes": ("value",),
    "batching/combinedTopics": ("enable", "config"),
    "batching/defaultTopic": ("action", "config"),
    "batching/topicConfigs": (),
    "batching/topicConfigs/topic": ("name", "action", "config"),
    "compression": (),
    "compression/namedConfigs": (),
    "compression/namedConfigs/config": ("name", "type", "minSize", "level"),
    "compression/sizeThresholdPercent": ("value",),
    "compression/defaultTopic": ("config",),
    "compression/topicConfigs": (),
    "compression/topicConfigs/topic": ("name", "config"),
    "topicRateLimiting": (),
    "topicRateLimiting/namedConfigs": (),
    "topicRateLimiting/namedConfigs/config": ("name", "interval", "maxCount"),
    "topicRateLimiting/defaultTopic": ("config",),
    "topicRateLimiting/topicConfigs": (),
    "topicRateLimiting/topicConfigs/topic": ("name", "config"),
    "httpInterface": (),
    "httpInterface/port": ("value",),
    "httpInterface/loopbackOnly": ("value",),
    "initialBrokers": (),
    "initialBrokers/broker": ("host", "port"),
}
"""The elements that this module converts, with the attributes of each."""

Value = TypeVar("Value")

ACTION_BY_OLD_NAME: Final = {"perTopic": "per_topic", "combinedTopics": "combined", "disable": "none"}
GZIP_LEVELS: Final = range(10)
GZIP_DEFAULT_LEVEL: Final = -1
"""zlib's number for its default level, which our settings express by the absence of `level`."""
KAFKA_PORT: Final = 9092
"""Kafka's default port."""
UNUSED_INTERVAL_MS: Final = 1000
"""The interval of a rate limit config without a maximum: our settings need an interval even there."""
BATCH_LIMITS: Final = (
    ("time", "time_ms", integer),
    ("messages", "messages", integer_with_suffix),
    ("bytes", "bytes", size),
)
"""Each limit of a batching config: the old element, the new setting, and the function that reads the value."""
_SERVERS_KEY: Final = ("kafka", "bootstrap_servers")

AGE_NOTE: Final = "The age of a batch counts from the arrival of its first message, not from the clients' timestamps."


class AttributeReader:
    """Reader of required attributes of elements.

    For a missing or invalid attribute, it adds an error to the draft and returns None.
    """

    def __init__(self, draft: Draft, file: str) -> None:
        self.draft = draft
        self._file = file

    def origin(self, element: Element) -> str:
        """Return the place of an element, as `file:line`."""
        return f"{self._file}:{element.line}"

    def read(self, element: Element, attribute: str, parse: Callable[[str], Value]) -> Value | None:
        """Return the parsed value of an attribute; `parse` raises ValueError like the functions of `old_values.py`."""
        raw = element.attributes.get(attribute)
        if raw is None:
            self.draft.add_error(self.origin(element), f'<{element.tag}> needs an attribute {attribute}="...".')
            return None
        try:
            return parse(raw)
        except ValueError as error:
            written = f'<{element.tag} {attribute}="{raw}">'
            self.draft.add_error(self.origin(element), f"{written} is not allowed: give {error}.")
            return None

    def copy(self, key: tuple[str, ...], element: Element, attribute: str, parse: Callable[[str], object]) -> None:
        """Copy the parsed value to the draft, unless it is None."""
        value = self.read(element, attribute, parse)
        if value is not None:
            self.draft.set(key, value, self.origin(element))


def read_sections(reader: AttributeReader, root: Element, default_port: int) -> None:
    """Convert all sections; the old daemon used `default_port` for a broker without a port."""
    for tag, convert in _SECTIONS.items():
        section = root.first(tag)
        if section is not None:
            convert(reader, section)
        elif tag == "batching":
            reader.draft.add_note("There was no <batching>: the daemon's defaults apply, 100 ms or 256k.")
    _convert_brokers(reader, root, default_port)


# --- batching --------------------------------------------------------------------------------------------------------


def _convert_batching(reader: AttributeReader, section: Element) -> None:
    reader.draft.add_note(AGE_NOTE, ("batching",))
    for config in section.find_all("namedConfigs/config"):
        _convert_batch_config(reader, config)
    key_by_tag = {"produceRequestDataLimit": "produce_request_data_limit", "messageMaxBytes": "message_max_bytes"}
    for tag, key in key_by_tag.items():
        if (element := section.first(tag)) is not None:
            reader.copy(("batching", key), element, "value", size)
    if (combined := section.first("combinedTopics")) is not None:
        reader.copy(("batching", "combined", "enable"), combined, "enable", boolean)
        if combined.attributes.get("config", "").strip():
            reader.copy(("batching", "combined", "config"), combined, "config", stripped)
    if (default := section.first("defaultTopic")) is not None:
        _convert_batching_rule(reader, default, ("batching", "default"))
    for topic in section.find_all("topicConfigs/topic"):
        if (name := reader.read(topic, "name", stripped)) is not None:
            _convert_batching_rule(reader, topic, ("batching", "topics", name))


def _convert_batch_config(reader: AttributeReader, config: Element) -> None:
    name = reader.read(config, "name", stripped)
    if name is None:
        return
    reader.draft.set(("batching", "configs", name), {}, reader.origin(config))
    for tag, key, parse in BATCH_LIMITS:
        element = config.first(tag)
        if element is not None and not equals_word(element.attributes.get("value", ""), "disable"):
            reader.copy(("batching", "configs", name, key), element, "value", parse)


def _convert_batching_rule(reader: AttributeReader, element: Element, key: tuple[str, ...]) -> None:
    """Convert the action and the config of `element`, a topic or the default topic, to the section `key`."""
    reader.copy((*key, "action"), element, "action", _parse_action)
    config = element.attributes.get("config", "")
    if reader.draft.get((*key, "action")) == "per_topic":
        reader.copy((*key, "config"), element, "config", stripped)
    elif config:
        reader.draft.add_note(f'config="{config}" was ignored with this action; it is left out.', key)


def _parse_action(raw: str) -> str:
    if raw.strip() not in ACTION_BY_OLD_NAME:
        raise ValueError(" or ".join(ACTION_BY_OLD_NAME))
    return ACTION_BY_OLD_NAME[raw.strip()]


# --- compression and rate limits -------------------------------------------------------------------------------------


def _convert_compression(reader: AttributeReader, section: Element) -> None:
    for config in section.find_all("namedConfigs/config"):
        _convert_compression_config(reader, config)
    if (threshold := section.first("sizeThresholdPercent")) is not None:
        reader.copy(("compression", "size_threshold_percent"), threshold, "value", integer)
    _convert_topic_configs(reader, section, "compression")


def _convert_compression_config(reader: AttributeReader, config: Element) -> None:
    name = reader.read(config, "name", stripped)
    if name is None:
        return
    key = ("compression", "configs", name)
    reader.copy((*key, "type"), config, "type", lambda raw: raw.strip().lower())
    codec = reader.draft.get((*key, "type"))
    if codec != "none" and "minSize" in config.attributes:
        reader.copy((*key, "min_size"), config, "minSize", size)
    level = reader.read(config, "level", integer) if "level" in config.attributes else None
    if level is None or (codec == "gzip" and level == GZIP_DEFAULT_LEVEL):
        return
    if codec == "gzip" and level in GZIP_LEVELS:
        reader.draft.set((*key, "level"), level, reader.origin(config))
    else:
        reader.draft.add_note(f'level="{level}" had no effect; it is left out.', key)


def _convert_rate_limits(reader: AttributeReader, section: Element) -> None:
    for config in section.find_all("namedConfigs/config"):
        name = reader.read(config, "name", stripped)
        if name is not None:
            _convert_rate_limit_config(reader, config, ("rate_limit", "configs", name))
    _convert_topic_configs(reader, section, "rate_limit")


def _convert_rate_limit_config(reader: AttributeReader, config: Element, key: tuple[str, ...]) -> None:
    reader.copy((*key, "max_count"), config, "maxCount", _parse_count)
    if equals_word(config.attributes.get("maxCount", ""), "unlimited") and "interval" not in config.attributes:
        reader.draft.set((*key, "interval_ms"), UNUSED_INTERVAL_MS, reader.origin(config))
    else:
        reader.copy((*key, "interval_ms"), config, "interval", integer)


def _parse_count(raw: str) -> int | None:
    """Parse a number of messages; `unlimited` is None."""
    return None if equals_word(raw, "unlimited") else integer_with_suffix(raw)


def _convert_topic_configs(reader: AttributeReader, section: Element, new_section: str) -> None:
    """Convert the assignments of configs to topics, and the default for all other topics."""
    if (default := section.first("defaultTopic")) is not None:
        reader.copy((new_section, "default"), default, "config", stripped)
    for topic in section.find_all("topicConfigs/topic"):
        if (name := reader.read(topic, "name", stripped)) is not None:
            reader.copy((new_section, "topics", name), topic, "config", stripped)


# --- HTTP and brokers -------------------------------------------------------------------------------------------------


def _convert_http(reader: AttributeReader, section: Element) -> None:
    status_port, loopback = section.first("port"), section.first("loopbackOnly")
    if status_port is not None:
        reader.draft.status_port = reader.read(status_port, "value", integer)
    if loopback is not None:
        reader.draft.loopback_only = bool(reader.read(loopback, "value", boolean))


def _convert_brokers(reader: AttributeReader, root: Element, default_port: int) -> None:
    brokers = list(root.find_all("initialBrokers/broker"))
    servers = [server for broker in brokers if (server := _server_of(reader, broker, default_port)) is not None]
    if servers:
        reader.draft.set(_SERVERS_KEY, servers, reader.origin(brokers[-1]))
        return
    reader.draft.suppress_errors(_SERVERS_KEY)  # another error reports the faulty broker, or the lack of brokers
    if not brokers:
        reader.draft.add_error(
            reader.origin(root), "there is no broker: give <initialBrokers> with a <broker host=... />."
        )


def _server_of(reader: AttributeReader, broker: Element, default_port: int) -> str | None:
    """Return HOST:PORT of a broker, or None if its host or port is invalid."""
    host = reader.read(broker, "host", stripped)
    has_port = bool(broker.attributes.get("port", "").strip())
    port_number = reader.read(broker, "port", port) if has_port else default_port
    if host is None or port_number is None:
        return None
    if not has_port and default_port != KAFKA_PORT:
        note = f"{host} had no port; the old daemon used {default_port}. Brokers usually listen on {KAFKA_PORT}."
        reader.draft.add_note(note, _SERVERS_KEY)
    return f"[{host}]:{port_number}" if ":" in host else f"{host}:{port_number}"


_SECTIONS: Final = {
    "batching": _convert_batching,
    "compression": _convert_compression,
    "topicRateLimiting": _convert_rate_limits,
    "httpInterface": _convert_http,
}
