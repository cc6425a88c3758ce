"""`bruce import-config`: results, notes and errors for old configurations."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.cli.commands import main
from bruce_mp.cli.importing.command_line import parse_options
from bruce_mp.cli.importing.convert import convert
from bruce_mp.cli.importing.options_page import ELEMENTS, render
from bruce_mp.cli.importing.sections import SECTION_ATTRIBUTES
from bruce_mp.cli.importing.settings import REMOVED_OPTIONS, SETTINGS
from bruce_mp.config.load import load_config
from bruce_mp.errors import ConfigError
from support.examples import examples
from support.old_configs import BROKERS, DATAGRAM, HEAD, bruce, dory, ours

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str, str]]

EVERYTHING = f"""{HEAD}
<!-- everything that Dory's file may hold -->
<doryConfig>
  <batching>
    <namedConfigs>
      <config name="quick"><time value="500"/><messages value="disable"/><bytes value="256k"/></config>
      <config name="a slow one"><time value="10000"/><messages value="2k"/></config>
    </namedConfigs>
    <produceRequestDataLimit value="1024k"/>
    <messageMaxBytes value="1000000"/>
    <combinedTopics enable="true" config="a slow one"/>
    <defaultTopic action="combinedTopics" config=""/>
    <topicConfigs>
      <topic name="clicks" action="perTopic" config="quick"/>
      <topic name="dotted.name" action="disable" config="quick"/>
    </topicConfigs>
  </batching>
  <compression>
    <namedConfigs>
      <config name="off" type="none"/>
      <config name="gz" type="GZIP" minSize="1k" level="3"/>
      <config name="sn" type="snappy" minSize="128" level="5"/>
    </namedConfigs>
    <sizeThresholdPercent value="75"/>
    <defaultTopic config="sn"/>
    <topicConfigs><topic name="pictures" config="off"/></topicConfigs>
  </compression>
  <topicRateLimiting>
    <namedConfigs>
      <config name="some" interval="15000" maxCount="4k"/>
      <config name="all" interval="1" maxCount="unlimited"/>
    </namedConfigs>
    <defaultTopic config="all"/>
    <topicConfigs><topic name="noisy" config="some"/></topicConfigs>
  </topicRateLimiting>
  <inputSources>
    <unixDatagram enable=" True "><path value="/run/dory/dgram"/><mode value="0222"/></unixDatagram>
    <unixStream enable="true"><path value="/run/dory/stream"/><mode value="0b010010010"/></unixStream>
    <tcp enable="true"><port value="9000"/></tcp>
  </inputSources>
  <inputConfig>
    <maxBuffer value="64m"/>
    <maxDatagramMsgSize value="32k"/>
    <allowLargeUnixDatagrams value="true"/>
    <maxStreamMsgSize value="16m"/>
  </inputConfig>
  <msgDelivery>
    <topicAutocreate enable="true"/>
    <maxFailedDeliveryAttempts value="7"/>
    <shutdownMaxDelay value="20000"/>
    <dispatcherRestartMaxDelay value="4000"/>
    <metadataRefreshInterval value="10"/>
    <compareMetadataOnRefresh value="false"/>
    <kafkaSocketTimeout value="30"/>
    <pauseRateLimitInitial value="3000"/>
    <pauseRateLimitMaxDouble value="3"/>
    <minPauseDelay value="2000"/>
  </msgDelivery>
  <httpInterface>
    <port value="9091"/>
    <loopbackOnly value="true"/>
    <discardReportInterval value="300"/>
    <badMsgPrefixSize value="128"/>
  </httpInterface>
  <discardLogging enable="true">
    <path value="/var/log/dory/discards"/>
    <maxFileSize value="48m"/>
    <maxArchiveSize value="256m"/>
    <maxMsgPrefixSize value="unlimited"/>
  </discardLogging>
  <kafkaConfig><clientId value="web"/><replicationTimeout value="9000"/></kafkaConfig>
  <msgDebug enable="true">
    <path value="/var/log/dory/debug"/><timeLimit value="60"/><byteLimit value="2048m"/>
  </msgDebug>
  <logging>
    <level value="INFO"/>
    <stdoutStderr enable="true"/>
    <syslog enable="false"/>
    <file enable="true"><path value="/var/log/dory/dory.log"/><mode value="0644"/></file>
    <logDiscards enable="false"/>
  </logging>
  <initialBrokers>
    <broker host="kafka-1" port="9092"/>
    <broker host="::1" port="9093"/>
  </initialBrokers>
</doryConfig>
"""

EVERYTHING_OURS = {
    "kafka": {"bootstrap_servers": ["kafka-1:9092", "[::1]:9093"], "client_id": "web", "replication_timeout_ms": 9000},
    "input": {
        "max_datagram_size": "32k",
        "allow_large_datagrams": True,
        "max_stream_size": "16m",
        "unix_datagram": {"enable": True, "path": "/run/dory/dgram", "mode": "0222"},
        "unix_stream": {"enable": True, "path": "/run/dory/stream", "mode": "0222"},
        "tcp": {"enable": True, "port": 9000},
    },
    "slab": {"size": "64m"},
    "timestamps": {"policy": "arrival"},
    "delivery": {
        "topic_autocreate": True,
        "max_failed_attempts": 7,
        "shutdown_max_delay_ms": 20000,
        "dispatcher_restart_max_delay_ms": 4000,
        "metadata_refresh_interval_min": 10,
        "compare_metadata_on_refresh": False,
        "kafka_socket_timeout_s": 30,
        "pause_rate_limit_initial_ms": 3000,
        "pause_rate_limit_max_double": 3,
        "min_pause_delay_ms": 2000,
    },
    "batching": {
        "configs": {"quick": {"time_ms": 500, "bytes": "256k"}, "a slow one": {"time_ms": 10000, "messages": 2048}},
        "produce_request_data_limit": "1m",
        "message_max_bytes": 1000000,
        "combined": {"enable": True, "config": "a slow one"},
        "default": {"action": "combined"},
        "topics": {"clicks": {"action": "per_topic", "config": "quick"}, "dotted.name": {"action": "none"}},
    },
    "compression": {
        "configs": {
            "off": {"type": "none"},
            "gz": {"type": "gzip", "min_size": "1k", "level": 3},
            "sn": {"type": "snappy", "min_size": 128},
        },
        "size_threshold_percent": 75,
        "default": "sn",
        "topics": {"pictures": "off"},
    },
    "rate_limit": {
        "configs": {"some": {"interval_ms": 15000, "max_count": 4096}, "all": {"interval_ms": 1}},
        "default": "all",
        "topics": {"noisy": "some"},
    },
    "http": {"listen": "127.0.0.1:9091", "discard_report_interval_s": 300, "bad_msg_prefix_size": 128},
    "discard_log": {
        "enable": True,
        "path": "/var/log/dory/discards",
        "max_file_size": "48m",
        "max_archive_size": "256m",
    },
    "msg_debug": {"enable": True, "path": "/var/log/dory/debug", "time_limit_s": 60, "byte_limit": "2g"},
    "logging": {
        "level": "INFO",
        "stdout_stderr": True,
        "syslog": False,
        "log_discards": False,
        "file": {"enable": True, "path": "/var/log/dory/dory.log", "mode": "0644"},
    },
}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command on a file; return status, output and errors."""

    def run(data: bytes, *arguments: str) -> tuple[int, str, str]:
        file = tmp_path / "old.xml"
        file.write_bytes(data)
        status = main(["import-config", str(file), *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


# --- the file --------------------------------------------------------------------------------------------------------


def test_every_setting_of_dorys_file_is_taken_over() -> None:
    assert ours(EVERYTHING.encode()) == EVERYTHING_OURS


@pytest.mark.parametrize("root", ["bruceConfig", "doryConfig"])
def test_a_file_without_inputs_is_converted_with_its_command_line(root: str) -> None:
    """Bruce, and Dory before 2019, had four sections in the file and the rest on the command line."""
    names = ("batching", "compression", "topicRateLimiting", "initialBrokers")
    found = [re.search(f"<{name}>.*?</{name}>", EVERYTHING, re.DOTALL) for name in names]
    sections = [match[0] for match in found if match]
    made = ours(f"{HEAD}<{root}>{''.join(sections)}</{root}>".encode(), "--receive_socket_name /var/run/in")
    assert {name: made[name] for name in ("batching", "compression", "rate_limit")} == {
        name: EVERYTHING_OURS[name] for name in ("batching", "compression", "rate_limit")
    }
    assert made["kafka"]["bootstrap_servers"] == ["kafka-1:9092", "[::1]:9093"]
    assert made["input"]["unix_datagram"] == {"enable": True, "path": "/var/run/in"}


def test_the_sample_file_contains_every_setting_of_the_table() -> None:
    def has(key: str) -> bool:
        table: Any = EVERYTHING_OURS
        for part in key.split("."):
            table = table.get(part, {}) if isinstance(table, dict) else {}
        return bool(table != {})

    left_out = {"discard_log.max_msg_prefix_size", "kafka.required_acks"}  # unlimited; only an option
    assert {setting.key for setting in SETTINGS if not has(setting.key)} == left_out


@pytest.mark.parametrize("data", [EVERYTHING.encode(), dory(DATAGRAM, BROKERS)], ids=["everything", "the least"])
def test_the_converted_configuration_is_valid(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    status, made, _ = run(data)
    assert status == 0
    file = tmp_path / "bruce.toml"
    file.write_text(made)
    assert main(["check-config", str(file)]) == 0
    assert f"{file}: OK" in capsys.readouterr().out
    assert load_config(file).kafka.servers[0] == ("kafka-1", 9092)


def test_dorys_defaults_are_written_explicitly() -> None:
    text = convert(dory(DATAGRAM, "<initialBrokers><broker host='k'/></initialBrokers>"), "old.xml", None)
    made = tomllib.loads(text)
    assert made["kafka"] == {"bootstrap_servers": ["k:9002"], "client_id": "dory"}
    assert made["timestamps"] == {"policy": "arrival"}
    assert "# NOTE: The old daemon sent no timestamps to Kafka" in text
    assert made["http"] == {"listen": "0.0.0.0:9090"}
    assert made["logging"] == {"stdout_stderr": False, "syslog": True}
    assert "# NOTE: k had no port; the old daemon used 9002." in text
    assert "# NOTE: The old daemon served its pages on all addresses" in text
    assert "max_failed_attempts = 5 restores the old limit" in " ".join(text.split()).replace("# ", "")


def test_a_disabled_input_stays_disabled() -> None:
    stream = '<inputSources><unixStream enable="true"><path value="/s"/></unixStream></inputSources>'
    assert ours(dory(stream, BROKERS))["input"] == {
        "unix_stream": {"enable": True, "path": "/s"},
        "unix_datagram": {"enable": False},
    }


def test_notes_appear_above_the_setting_they_explain() -> None:
    text = convert(EVERYTHING.encode(), "old.xml", None)
    lines = text.splitlines()
    above = lines[lines.index('size = "64m"') - 1]
    assert above.startswith("# ")
    assert "crash. If messages are small" in above
    assert '# NOTE: level="5" had no effect; it is left out.' in text
    assert '# NOTE: config="quick" was ignored with this action; it is left out.' in text


def test_an_attribute_that_dory_ignored_gets_a_note() -> None:
    made = convert(dory(DATAGRAM, BROKERS.replace("host=", 'rack="r1" host=')), "old.xml", None)
    assert '# NOTE: old.xml:4: rack="r1" of <broker> is not known.' in made


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"<doryConfig>", 1, "not XML"),
        (b"", 1, "not XML: no element found"),
        (b"<a/>", 1, "of Dory (<doryConfig>) or of Bruce (<bruceConfig>)"),
        (b'<!DOCTYPE a [<!ENTITY b "bbbb">]>\n<doryConfig/>', 1, "document type"),
        (dory(DATAGRAM), 2, "there is no broker"),
        (dory(DATAGRAM, BROKERS, "<batchin/>"), 5, "<batchin> is not known in <doryConfig>: did you mean <batching>?"),
        (dory(DATAGRAM, BROKERS, "<logging/>", "<logging/>"), 6, "<logging> occurs twice"),
        (dory(DATAGRAM, BROKERS, "<logging>words</logging>"), 5, 'text in <logging> ("words")'),
        (dory(DATAGRAM, BROKERS, "<logging><level value='INFO'><x/></level></logging>"), 5, "<x> is not known"),
        (
            dory(DATAGRAM, BROKERS, "<logging>\n<level value='LOUD'/></logging>"),
            6,
            '"LOUD" is not allowed: give "EMERG"',
        ),
        (dory(DATAGRAM, BROKERS, "<httpInterface><port value='http'/></httpInterface>"), 5, "give an integer"),
        (
            dory(DATAGRAM, BROKERS, "<inputConfig><maxBuffer value='12g'/></inputConfig>"),
            5,
            "optionally followed by k or m",
        ),
        (
            dory(DATAGRAM, BROKERS, "<msgDelivery><shutdownMaxDelay value='-1'/></msgDelivery>"),
            5,
            "an integer from 0 to",
        ),
        (dory(DATAGRAM.replace("0222", "222"), BROKERS), 3, "an octal number (0222)"),
        (dory(DATAGRAM.replace("0222", "01000"), BROKERS), 3, "at most 0777"),
        (dory(DATAGRAM.replace("true", "yes"), BROKERS), 3, "give true or false"),
        (dory(DATAGRAM.replace("/var", "var"), BROKERS), 3, "absolute path"),
        (dory(DATAGRAM, BROKERS.replace('host="kafka-1"', "")), 4, 'needs an attribute host="..."'),
        (
            dory(DATAGRAM, BROKERS, "<batching><namedConfigs>\n<config name='c'/></namedConfigs></batching>"),
            6,
            "has no limit",
        ),
        (
            dory(DATAGRAM, BROKERS, "<batching><defaultTopic action='mixed'/></batching>"),
            5,
            "perTopic or combinedTopics",
        ),
        (
            dory(DATAGRAM, BROKERS, "<batching><defaultTopic action='perTopic' config='c'/></batching>"),
            5,
            '"c" is not allowed: give the name',
        ),
        (dory(DATAGRAM, BROKERS, "<compression><defaultTopic config='c'/></compression>"), 5, '"c" is not allowed'),
    ],
)
def test_an_invalid_file_is_rejected_with_its_line_number(run: Run, data: bytes, line: int, words: str) -> None:
    status, made, said = run(data)
    assert (status, made) == (1, "")
    assert f"old.xml:{line}: " in said
    assert words in said


def test_all_faults_are_reported_together(run: Run) -> None:
    _, _, said = run(dory("<inputSources/>", "<logging><level value='LOUD'/></logging>", "<wrong/>"))
    assert [word in said for word in ("no input is enabled", "LOUD", "<wrong>", "no broker")] == [True] * 4


@pytest.mark.parametrize(
    "brokers",
    [
        "",
        "<initialBrokers><broker host='k' port='no'/></initialBrokers>",
        "<initialBrokers><broker host='k' port='70000'/></initialBrokers>",
        "<initialBrokers><broker port='9092'/></initialBrokers>",
        "<initialBrokers><broker host='k' port='9092'/><broker host='l' port='no'/></initialBrokers>",
    ],
)
def test_a_fault_of_the_broker_list_is_reported_once(run: Run, brokers: str) -> None:
    status, _, said = run(dory(DATAGRAM, brokers))
    assert (status, said.count("\n")) == (1, 1)


def test_each_invalid_broker_is_reported(run: Run) -> None:
    more = "<broker host='k' port='no'/><broker host='l' port='70000'/></"
    _, _, said = run(dory(DATAGRAM, BROKERS.replace("</", more)))
    assert ('port="no"' in said, "l:70000" in said) == (True, True)


def test_a_missing_file_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["import-config", str(tmp_path / "none.xml")]) == 1
    assert "No such file" in capsys.readouterr().err


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=300).filter(
    lambda name: name.strip(" \ufffe\uffff")  # XML has no such characters
)


@examples(40)
@given(topic=NAMES, config=NAMES)
def test_names_of_any_characters_survive_the_conversion(topic: str, config: str) -> None:
    def quoted(text: str) -> str:
        return "".join(f"&#{ord(character)};" for character in text if ord(character) not in {0xFFFE, 0xFFFF})

    batching = (
        f'<batching><namedConfigs><config name="{quoted(config)}"><time value="1"/></config></namedConfigs>'
        f'<topicConfigs><topic name="{quoted(topic)}" action="perTopic" config="{quoted(config)}" x="{quoted(topic)}"/>'
        "</topicConfigs></batching>"
    )
    made = ours(dory(DATAGRAM, BROKERS, batching))["batching"]
    ((name, rule),) = made["topics"].items()
    assert quoted(name) == quoted(topic.strip(" "))
    assert quoted(rule["config"]) == quoted(config.strip(" "))


# --- the command line ------------------------------------------------------------------------------------------------

ALL_OPTIONS = """
/usr/bin/bruce --config_path /etc/bruce.xml --receive_socket_name=/var/run/bruce/in --receive_socket_mode 0222
--receive_stream_socket_name /var/run/bruce/stream --receive_stream_socket_mode 146 --input_port 9000
--msg_buffer_max 65536 --max_input_msg_size 32768 --allow_large_unix_datagrams --max_stream_input_msg_size 2097152
--topic_autocreate --max_failed_delivery_attempts 4 --shutdown_max_delay 1000 --dispatcher_restart_max_delay 2000
--metadata_refresh_interval 20 --skip_compare_metadata_on_refresh --kafka_socket_timeout 50
--pause_rate_limit_initial 1500 --pause_rate_limit_max_double 2 --min_pause_delay 700 --status_port 9095
--status_loopback_only --discard_report_interval 60 --discard_report_bad_msg_prefix_size 99
--discard_log_path /var/log/d --discard_log_max_file_size 65536 --discard_log_max_archive_size 131072
--discard_log_bad_msg_prefix_size 256 --client_id "" --replication_timeout 5000 --required_acks 2
--debug_dir /var/log/debug --msg_debug_time_limit 10 --msg_debug_byte_limit 1000 --log_level LOG_INFO --log_echo
--no_log_discard --daemon --protocol_version 0 --use_old_input_format --retry_on_unknown_partition -- ignored
"""


def test_every_command_line_option_is_converted() -> None:
    text = convert(bruce(BROKERS), "old.xml", parse_options(ALL_OPTIONS))
    assert tomllib.loads(text) == {
        "kafka": {
            "bootstrap_servers": ["kafka-1:9092"],
            "client_id": "bruce",
            "replication_timeout_ms": 5000,
            "required_acks": -1,
        },
        "input": {
            "max_datagram_size": "32k",
            "allow_large_datagrams": True,
            "max_stream_size": "2m",
            "unix_datagram": {"enable": True, "path": "/var/run/bruce/in", "mode": "0222"},
            "unix_stream": {"enable": True, "path": "/var/run/bruce/stream", "mode": "0222"},
            "tcp": {"enable": True, "port": 9000},
        },
        "slab": {"size": "64m"},
        "timestamps": {"policy": "arrival"},
        "delivery": {
            "topic_autocreate": True,
            "max_failed_attempts": 4,
            "shutdown_max_delay_ms": 1000,
            "dispatcher_restart_max_delay_ms": 2000,
            "metadata_refresh_interval_min": 20,
            "compare_metadata_on_refresh": False,
            "kafka_socket_timeout_s": 50,
            "pause_rate_limit_initial_ms": 1500,
            "pause_rate_limit_max_double": 2,
            "min_pause_delay_ms": 700,
        },
        "http": {"listen": "127.0.0.1:9095", "discard_report_interval_s": 60, "bad_msg_prefix_size": 99},
        "discard_log": {
            "enable": True,
            "path": "/var/log/d",
            "max_file_size": "64m",
            "max_archive_size": "128m",
            "max_msg_prefix_size": 256,
        },
        "msg_debug": {"enable": True, "path": "/var/log/debug", "time_limit_s": 10, "byte_limit": 1000},
        "logging": {"level": "INFO", "stdout_stderr": True, "syslog": True, "log_discards": False},
    }
    for option in ("daemon", "protocol_version", "use_old_input_format", "retry_on_unknown_partition"):
        assert f"# NOTE: --{option}: " in text
    assert "# NOTE: --required_acks 2: " in text


def test_the_sample_command_line_contains_every_option_of_the_table() -> None:
    given_ = parse_options(ALL_OPTIONS).keys()
    rest = {"metadata_api_version", "produce_api_version", "use_old_output_format", "omit_timestamp", "version", "help"}
    assert {setting.option for setting in SETTINGS if setting.option} | REMOVED_OPTIONS.keys() == (
        (given_ | rest) - {"config_path", "status_port", "status_loopback_only"}
    )


def test_the_file_may_be_named_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bruce.xml").write_bytes(bruce(BROKERS))
    line = f"--config-path {tmp_path}/bruce.xml --receive_socket_name /in --msg_buffer_max 16384"
    assert main(["import-config", "--command-line", line]) == 0
    made = tomllib.loads(capsys.readouterr().out)
    assert made["slab"] == {"size": "16m"}
    assert made["http"] == {"listen": "0.0.0.0:9090"}


def test_a_status_port_that_the_kernel_chooses_is_kept() -> None:
    options = parse_options("--receive_socket_name /in --status_port 0 --status_loopback_only")
    assert tomllib.loads(convert(bruce(BROKERS), "old.xml", options))["http"] == {"listen": "127.0.0.1:0"}


def test_usage_is_shown_without_a_file_or_config_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["import-config", "--command-line=--daemon"])
    assert ended.value.code == 2
    assert "--config_path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--statu_port 1", "--statu_port is not an option of Bruce or Dory. Did you mean --status_port?"),
        ("--status_port", "--status_port needs a value"),
        ("bruce stray", "stray is not an option"),
        ("'", "cannot be read"),
        ("--receive_socket_name /in --msg_buffer_max x", "--msg_buffer_max x is not allowed: give an integer"),
        ("--receive_socket_name /in --receive_socket_mode x", "give a number as C writes it"),
        ("--receive_socket_name /in --receive_socket_mode 01777", "give at most 0777"),
        ("--receive_socket_name /in --status_port x", "--status_port x is not allowed"),
        ("--receive_socket_name in", "command line: input.unix_datagram.path"),
        ("--daemon", '--command-line "--receive_socket_name PATH'),
        ('--receive_socket_name /in --msg_buffer_max "$MSG_BUFFER_MAX"', "$MSG_BUFFER_MAX is a variable"),
    ],
)
def test_invalid_options_are_rejected(run: Run, line: str, words: str) -> None:
    status, made, said = run(bruce(BROKERS), f"--command-line={line}")
    assert (status, made) == (1, "")
    assert words in said


def test_a_bruce_file_without_its_command_line_has_no_socket_path() -> None:
    with pytest.raises(ConfigError, match="path of the socket was on the command line"):
        convert(bruce(BROKERS), "old.xml", None)


# --- the page of options ----------------------------------------------------------------------------------------------
def test_the_options_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "migrating-options.md"
    assert page.read_text() == render(), (
        "run: python -m bruce_mp.cli.importing.options_page > docs/migrating-options.md"
    )


def test_the_page_of_options_has_every_element_that_is_read() -> None:
    with_a_meaning = {place for place, attributes in SECTION_ATTRIBUTES.items() if attributes}
    assert [place for place in with_a_meaning if not place.startswith(tuple(ELEMENTS))] == []
    assert ELEMENTS.keys() <= SECTION_ATTRIBUTES.keys()


def test_the_options_page_names_existing_settings() -> None:
    reference = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    for key in [*(setting.key for setting in SETTINGS), *(key for key, _ in ELEMENTS.values())]:
        splits = [key.rpartition("."), key.partition(".")]
        assert f"### `[{key}]`" in reference or any(name in row_names(reference, of) for of, _, name in splits), key


def row_names(reference: str, section: str) -> list[str]:
    """Return the settings in a section of the reference page."""
    below = reference.partition(f"### `[{section}]`")[2].partition("\n### ")[0]
    return [
        name for cell in re.findall(r"^\| (`[^|]+) \|", below, re.MULTILINE) for name in re.findall("`(.+?)`", cell)
    ]
