"""Loading: defaults, notations of values, overrides, and the reports of problems."""

from __future__ import annotations

import errno
import os
import pickle
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.config.addresses import HostPort, UnixPath
from bruce_mp.config.load import load_config, load_status_settings
from bruce_mp.config.model import Config
from bruce_mp.config.paths import disk_path_for
from bruce_mp.config.sections import Kafka
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    Load = Callable[..., Config]

DEFAULTS = Config(kafka=Kafka(bootstrap_servers=("b1:9092",)))


def value_at(config: object, key: str) -> Any:
    for name in key.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


def test_the_minimal_file_yields_the_defaults(load: Load) -> None:
    config = load()
    assert config == DEFAULTS
    assert config.slab.size == 128 << 20
    assert config.kafka.servers == (HostPort("b1", 9092),)
    assert config.http.address == HostPort("127.0.0.1", 9090)
    assert config.delivery.retry_limit is None


def test_a_config_survives_the_transfer_to_another_process(load: Load) -> None:
    config = load('[batching.topics."t"]\naction = "none"\n')
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("slab.size", '"8m"', 8 << 20),
        ("slab.size", '"64G"', 64 << 30),
        ("slab.size", "8388609", 8388609),
        ("input.max_datagram_size", '"1000"', 1000),
        ("input.unix_datagram.mode", '"0222"', 0o222),
        ("http.listen", '"unix:/run/b.http"', "unix:/run/b.http"),
        ("http.listen", '"[::1]:0"', "[::1]:0"),
        ("kafka.bootstrap_servers", '["a:1", "[fe80::1%eth0]:2"]', ("a:1", "[fe80::1%eth0]:2")),
        ("kafka.required_acks", "1", 1),
        ("kafka.broker_version", '"0.9.0.1"', "0.9.0.1"),
        ("delivery.max_failed_attempts", "5", 5),
        ("daemon.run_dir", f'"/{"x" * 88}"', "/" + "x" * 88),
        ("input.unix_datagram.path", f'"/{"x" * 106}"', "/" + "x" * 106),
        ("logging.level", '"DEBUG"', "DEBUG"),
        ('compression.configs.x = { type = "gzip", level = 0 }\nslab.size', '"8m"', 8 << 20),
    ],
)
def test_values_are_accepted_in_all_spellings(tmp_path: Path, key: str, written: str, value: object) -> None:
    path = tmp_path / "bruce.toml"
    servers = "" if key == "kafka.bootstrap_servers" else 'kafka.bootstrap_servers = ["b1:9092"]\n'
    path.write_text(f"{servers}{key} = {written}\n")
    assert value_at(load_config(path), key.rpartition("\n")[2]) == value


@pytest.mark.parametrize(("limit", "found"), [(0, None), (3, 3), (254, 254), (255, None)])
def test_zero_and_more_than_a_batch_counts_mean_no_limit(load: Load, limit: int, found: int | None) -> None:
    assert load(f"[delivery]\nmax_failed_attempts = {limit}\n").delivery.retry_limit == found
    assert load("[delivery]\n").delivery.retry_limit is None


def test_http_listen_accepts_a_unix_socket(load: Load) -> None:
    assert load('[http]\nlisten = "unix:/run/b.http"\n').http.address == UnixPath("/run/b.http")


def test_the_slab_is_named_after_the_run_directory(load: Load) -> None:
    assert load().slab_path == "/dev/shm/bruce-run-bruce.slab"
    assert load('[daemon]\nrun_dir = "/run/bruce/"\n').slab_path == "/dev/shm/bruce-run-bruce.slab"
    assert load('[slab]\npath = "/var/b.slab"\n').slab_path == "/var/b.slab"
    places = {load(f'[daemon]\nrun_dir = "{run_dir}"\n').slab_path for run_dir in ("/a/b", "/a-b", "/a%2db")}
    assert len(places) == 3


@pytest.mark.parametrize(
    ("slab", "setting", "state", "expected"),
    [
        ("/var/lib/b/slab", None, None, "/var/lib/b/slab.spill"),
        ("/var/lib/b/slab", None, "/state", "/var/lib/b/slab.spill"),
        ("/dev/shm/bruce-run-bruce.slab", None, None, "/var/tmp/bruce-run-bruce.slab.spill"),
        ("/dev/shm/bruce-run-bruce.slab", None, "", "/var/tmp/bruce-run-bruce.slab.spill"),
        ("/dev/shm/bruce-run-bruce.slab", None, "/var/lib/bruce:/x", "/var/lib/bruce/bruce-run-bruce.slab.spill"),
        ("/dev/shm/bruce-run-bruce.slab", "/data", "/var/lib/bruce", "/data/bruce-run-bruce.slab.spill"),
        ("/var/lib/b/slab", "/data", None, "/data/slab.spill"),
    ],
)
def test_the_directory_of_spill_files_is_on_a_disk(
    monkeypatch: pytest.MonkeyPatch, slab: str, setting: str | None, state: str | None, expected: str
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    if state is not None:
        monkeypatch.setenv("STATE_DIRECTORY", state)
    assert disk_path_for(slab, setting, "spill") == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[slab]\nsizes = 1\n", "slab.sizes is not a setting; did you mean size?"),
        ("[kafka.ssl]\n", "kafka.ssl is not a setting; did you mean tls?"),
        ("[slap]\n", "slap is not a setting; did you mean slab?"),
        ("[input.tcp]\nxyz = 1\n", "input.tcp.xyz is not a setting; known here: enable, host, port, loopback_only."),
        ("[slab]\nsize = true\n", "slab.size = true is not allowed (a size is an integer or a string of digits"),
        ('[slab]\nsize = "12q"\n', 'slab.size = "12q" is not allowed'),
        ("[slab]\nsize = 1.5\n", "slab.size = 1.5 is not allowed"),
        ('[slab]\nsize = "7m"\n', 'slab.size = "7m" is not allowed: give a size from 8m to 64g.'),
        ("[slab]\nsize = -8\n", "slab.size = -8 is not allowed"),
        ("[input.tcp]\nport = 65536\n", "input.tcp.port = 65536 is not allowed: give an integer from 0 to 65535."),
        ('[input.tcp]\nport = "9000"\n', 'input.tcp.port = "9000" is not allowed: give an integer'),
        ("[input.tcp]\nport = true\n", "input.tcp.port = true is not allowed: give an integer"),
        ("[input.tcp]\nenable = 1\n", "input.tcp.enable = 1 is not allowed: give true or false."),
        ("input = 3\n", "kafka.input is not a setting"),
        ("[[input]]\n", "input = [{}] is not allowed: give a section, [input]."),
        ("[batching]\ntopics = 3\n", "batching.topics = 3 is not allowed: give a section, [batching.topics]."),
        (
            '[logging]\nfile = "/x"\n',
            'logging.file = "/x" is not allowed: give a section, [logging.file], with enable = true and path.',
        ),
        ('[input.unix_datagram]\nmode = "222"\n', 'mode = "222" is not allowed: give an octal mode as a string'),
        ("[input.unix_datagram]\nmode = 0o222\n", "mode = 146 is not allowed: give an octal mode as a string"),
        ('[input.unix_datagram]\nmode = "01777"\n', 'mode = "01777" is not allowed'),
        ('[input.unix_datagram]\npath = "b.dgram"\n', '("b.dgram" is not an absolute path): give an absolute path'),
        (
            f'[input.unix_datagram]\npath = "/{"x" * 107}"\n',
            "(the path has 108 bytes): give an absolute path of at most 107",
        ),
        (f'[daemon]\nrun_dir = "/{"x" * 89}"\n', "(the path has 90 bytes): give an absolute path of at most 89 bytes"),
        ('[daemon]\nrun_dir = "/"\n', "is not a usable path"),
        ('[slab]\npath = "/a\\u0000b"\n', "is not a usable path"),
        ("[slab]\npath = 3\n", "slab.path = 3 is not allowed: give an absolute path."),
        ('[http]\nlisten = "9090"\n', '("9090" is not of the form host:port): give "host:port" or "unix:/path".'),
        ('[http]\nlisten = "h:65536"\n', "(port 65536 is not from 0 to 65535)"),
        ('[input.tcp]\nhost = "a..b"\n', '("a..b" is not a host name): give a string in quotes, for example'),
        ('[http]\nlisten = "a..b:9090"\n', '("a..b" is not a host name): give "host:port" or "unix:/path".'),
        ('[http]\nlisten = "unix:b"\n', '("b" is not an absolute path)'),
        ("[http]\nlisten = 9090\n", 'http.listen = 9090 is not allowed: give "host:port" or "unix:/path".'),
        ('[logging]\nlevel = "LOUD"\n', 'logging.level = "LOUD" is not allowed: give "EMERG" or "ALERT"'),
        ('[batching.topics."a topic"]\naction = "all"\n', 'batching.topics."a topic".action = "all" is not allowed'),
        ("[batching.topics.t]\n", 'batching.topics.t.action is missing: give "per_topic" or "combined" or "none".'),
        ("[compression.topics]\nt = 3\n", "compression.topics.t = 3 is not allowed: give a string in quotes."),
        ("[delivery]\nmax_in_flight = 6\n", "delivery.max_in_flight = 6 is not allowed: give an integer from 1 to 5."),
        ("[delivery]\nmax_failed_attempts = -1\n", "max_failed_attempts = -1 is not allowed: give an integer from 0"),
        ("required_acks = 2\n", "kafka.required_acks = 2 is not allowed: give -1 or 0 or 1."),
        ("broker_version = 0.9\n", 'give a string in quotes, for example "0.9.0.1".'),
        ('client_id = ""\n', 'kafka.client_id = "" is not allowed'),
        ('client_id = "a\\n"\n', 'kafka.client_id = "a\\n" is not allowed'),
        (f'client_id = "{"x" * 8192}"\n', "is not allowed: give a string of 1 to 8191 characters."),
        ('[http]\nallowed_hosts = ["a\\n"]\n', 'http.allowed_hosts = ["a\\n"] is not allowed'),
        ('[http]\ntoken_env = "A\\n"\n', 'http.token_env = "A\\n" is not allowed'),
        ('[events]\ncommand = ["/bin/x", "a\\u0000"]\n', "(an argument cannot contain NUL): give a list of strings"),
    ],
)
def test_an_invalid_setting_is_named(load: Load, tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert str(caught.value).startswith(f"{tmp_path}/bruce.toml: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 'kafka.bootstrap_servers is missing: give a list of at least one "host:port".'),
        ("[kafka]\nbootstrap_servers = []\n", "kafka.bootstrap_servers = [] is not allowed"),
        ('[kafka]\nbootstrap_servers = ["b1"]\n', '("b1" is not of the form host:port)'),
        ('[kafka]\nbootstrap_servers = ["b1:0"]\n', "(port 0 is not from 1 to 65535)"),
        ('[kafka]\nbootstrap_servers = ["::1:9092"]\n', '("::1:9092" is not of the form host:port)'),
        ('[kafka]\nbootstrap_servers = "b1:9092"\n', 'bootstrap_servers = "b1:9092" is not allowed: give a list'),
        ("[kafka]\nbootstrap_servers = [1]\n", "bootstrap_servers = [1] is not allowed: give a list"),
    ],
)
def test_missing_brokers_are_reported(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bruce.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert words in str(caught.value)


def test_all_problems_are_reported_together(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load("nonsense = 1\n[slab]\nsize = 1\npaht = 2\n[logging.file]\nenable = 3\n")
    keys = [line.split(": ")[1].split(" ")[0] for line in str(caught.value).splitlines()]
    assert keys == ["kafka.nonsense", "slab.paht", "slab.size", "logging.file.enable"]


def test_long_values_are_truncated_in_the_error(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f'[logging]\nlevel = "{"x" * 5000}"\n')
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[slab]\nsize 3\n", "bruce.toml:4:6: this is not TOML: "),
        ("[slab]\n[slab]\n", "bruce.toml:4:6: this is not TOML: the file has this section twice; "),
        ('[slab]\nsize = "9m"\nsize = "8m"\n', "this is not TOML: the file has this setting twice; remove one\\.$"),
        ('[slab]\nsize = "9m\n[http]\n', 'bruce.toml:4:11: .* the string that begins with " in this line is not'),
        ('[slab]\nsize = "9m', 'bruce.toml:4:11: .* the string that begins with " in this line is not'),
        ("[slab]\npath = '/s\n# it's\n", "bruce.toml:4:11: .* the string that begins with ' in this line"),
        ("[slab]\npath = '/s\n[http]\n", "bruce.toml:4:8: .* the string that begins with ' in this line"),
        ('[slab]\npath = """', 'bruce.toml:4:8: .* the string that begins with """ in this line is not'),
        ("[slab]\npath = '''\n/s\n", "bruce.toml:4:8: .* the string that begins with ''' in this line"),
        ('[slab]\n"path = 1\n', 'bruce.toml:4:10: .* the string that begins with " in this line is not'),
        ('[slab]\npath = "\x01"\n', "bruce.toml:4:9: this is not TOML: Illegal character '.x01'"),
        ('[slab]\npath = "a"b"\n', "bruce.toml:4:11: this is not TOML: the line should end here; text needs quotes"),
        ("[http]\nmode = 0222\n", "bruce.toml:4:9: this is not TOML: the line .* begins with 0 only as in 0o660\\.$"),
        (
            "[slab]\nsize = Off\n",
            "bruce.toml:4:8: this is not TOML: a value is a string in quotes, a number, true or false",
        ),
        ("[slab]\nsize = [1,\n", "bruce.toml:5:end: this is not TOML: "),
        (f"[slab]\nsize = {'9' * 5000}\n", "bruce.toml:"),
        (f"[slab]\nsize = {'[' * 3000}{']' * 3000}\n", "bruce.toml:5:end: this is not TOML: maximum recursion depth"),
    ],
)
def test_a_toml_error_has_its_line_and_column(load: Load, text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        load(text)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"# gr\xf6\xdfe")
    with pytest.raises(ConfigError, match="latin: byte 4 is not UTF-8"):
        load_config(tmp_path / "latin")
    with pytest.raises(ConfigError, match="missing: cannot read the configuration: No such file"):
        load_config(tmp_path / "missing")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("slab.size=64m", "slab.size", 64 << 20),
        ('slab.size="64m"', "slab.size", 64 << 20),
        (" slab.size = 64m ", "slab.size", 64 << 20),
        ("input.tcp.port=9001", "input.tcp.port", 9001),
        ("input.tcp.enable=true", "input.tcp.enable", True),
        ("logging.level=DEBUG", "logging.level", "DEBUG"),
        ("http.listen=127.0.0.1:0", "http.listen", "127.0.0.1:0"),
        ("slab.path=/a=b", "slab.path", "/a=b"),
        ('kafka.bootstrap_servers=["b2:1","b3:2"]', "kafka.bootstrap_servers", ("b2:1", "b3:2")),
        ('batching.topics."t".action=none', "batching.topics.t.action", "none"),
    ],
)
def test_overrides_replace_values_of_the_file(load: Load, override: str, key: str, value: object) -> None:
    config = load("[slab]\nsize = 8388608\n[input.tcp]\nport = 1\n", override)
    assert value_at(config, key) == value


def test_the_last_override_wins_and_others_stay(load: Load) -> None:
    config = load("[slab]\npath = '/a'\n", "slab.size=8m", "slab.size=9m")
    assert (config.slab.path, config.slab.size) == ("/a", 9 << 20)


def test_an_override_may_name_a_topic_of_any_characters(load: Load) -> None:
    config = load("", 'batching.topics."a.b c".action=none')
    assert config.batching.topics["a.b c"].action == "none"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("slab.size", "--set slab.size: this is not of the form key=value"),
        ("slab size=3", "--set slab size=3: slab size is not a key"),
        ("=3", "is not a key"),
        ("slab={}", "give one setting"),
        ("slab={size=1,path=2}", "give one setting"),
        ("slab.size=7m", '--set slab.size: slab.size = "7m" is not allowed: give a size'),
        ("slab.size=" + "9" * 5000, "--set slab.size: slab.size = "),
        ("slab=3", "--set slab: slab = 3 is not allowed: give a section, [slab]."),
        ("input.tpc.port=3", "--set input.tpc.port: input.tpc is not a setting; did you mean tcp?"),
        ("batching.combined.config=x", "--set batching.combined.config: batching.combined.config"),
    ],
)
def test_an_invalid_override_is_named_instead_of_the_file(load: Load, override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("", override)
    assert words in str(caught.value)
    assert "bruce.toml" not in str(caught.value)


def test_problems_of_all_kinds_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "bruce.toml"
    path.write_text(
        '[input]\nmax_datagram_size = "big"\n[input.unix_datagram]\nenable = false\n'
        '[batching.default]\naction = "per_topic"\nconfig = "fast"\n[slab]\nsise = "64m"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    lines = str(caught.value).splitlines()
    expected = (
        "kafka.bootstrap_servers is missing",
        'input.max_datagram_size = "big" is not allowed',
        "slab.sise is not a setting",
        'batching.default.config = "fast" is not allowed',
        "No input is enabled",
    )
    assert len(lines) == len(expected)
    assert all(any(text in line for line in lines) for text in expected)


def test_an_invalid_entry_of_a_map_does_not_hide_other_problems(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load('[partitioner.topics]\nclicks = "bad"\n[input.unix_datagram]\nenable = false\n')
    assert "partitioner.topics.clicks" in str(caught.value)
    assert "No input is enabled" in str(caught.value)


def test_consequences_of_an_invalid_value_are_not_reported(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load('[batching.default]\naction = "per_topik"\nconfig = "standard"\n')
    assert str(caught.value).count("\n") == 0


def test_an_incomplete_entry_does_not_hide_other_problems(load: Load) -> None:
    with pytest.raises(ConfigError, match="interval_ms is missing"):
        load("[rate_limit.configs.slow]\nmax_count = 1\n")


def test_a_denied_file_names_the_user_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", deny)
    user = pwd.getpwuid(os.geteuid()).pw_name
    with pytest.raises(ConfigError, match=f"denied. Run this as the daemon's user or as root, .* user, {user}, read"):
        load_config(tmp_path / "bruce.toml")


@pytest.mark.parametrize(
    "mistake",
    [
        "[slab]\nsiez = 1\n",
        "kafka = 3\n",
        '[daemon]\nrun_dirr = "/x"\nrun_dir = "/run/x"\n',
        '[input]\ntcp.port = "x"\n',
    ],
)
def test_the_settings_of_the_status_commands_do_not_depend_on_others(tmp_path: Path, mistake: str) -> None:
    path = tmp_path / "bruce.toml"
    run_dir = "" if "run_dir" in mistake else 'daemon.run_dir = "/run/x"\n'
    path.write_text(f'http.listen = "127.0.0.1:7"\n{run_dir}{mistake}')
    with pytest.raises(ConfigError):
        load_config(path)
    settings = load_status_settings(path)
    assert (settings.http.listen, settings.run_dir) == ("127.0.0.1:7", "/run/x")


@pytest.mark.parametrize("mistake", ["http.listn = 1", "http.listen = 1", "daemon = 3", "daemon.run_dir = 3", "http ="])
def test_a_mistake_in_the_settings_of_the_status_commands_is_reported(tmp_path: Path, mistake: str) -> None:
    path = tmp_path / "bruce.toml"
    path.write_text(mistake)
    with pytest.raises(ConfigError):
        load_status_settings(path)
