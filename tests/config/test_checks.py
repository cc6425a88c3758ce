"""Settings that must agree with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config

    Load = Callable[..., Config]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[batching.configs.x]\n",
            "batching.configs.x has no limit: give at least one of time_ms, messages and bytes.",
        ),
        (
            '[batching.combined]\nconfig = "x"\n',
            "give the name of a [batching.configs.NAME] section (defined: standard).",
        ),
        ('[batching.default]\naction = "per_topic"\n', "batching.default.config is missing: give the name of a"),
        ('[batching.default]\nconfig = "standard"\n', 'the action "combined" takes no limits; remove it'),
        ('[batching.topics.t]\naction = "none"\nconfig = "standard"\n', 'batching.topics.t.config = "standard" is'),
        ('[batching.topics."a b"]\naction = "per_topic"\nconfig = "x"\n', 'batching.topics."a b".config = "x" is not'),
        ('[compression]\ndefault = "x"\n', 'compression.default = "x" is not allowed: give the name of a'),
        ('[compression.topics]\nt = "x"\n', "(defined: none yet)."),
        ('[compression.topics]\nt = "x"\n[compression.configs.y]\ntype = "zstd"\n', "(defined: y)."),
        ('[compression.configs.y]\ntype = "snappy"\nlevel = 1\n', '"snappy" has no levels; remove it.'),
        ('[compression.configs.y]\ntype = "none"\nlevel = 1\n', '"none" has no levels; remove it.'),
        ('[compression.configs.y]\ntype = "gzip"\nlevel = 10\n', "give an integer from 0 to 9 for gzip."),
        ('[compression.configs.y]\ntype = "lz4"\nlevel = 17\n', "give an integer from 0 to 16 for lz4."),
        ('[compression.configs.y]\ntype = "zstd"\nlevel = 0\n', "give an integer from 1 to 22 for zstd."),
        ('[rate_limit]\ndefault = "x"\n', 'rate_limit.default = "x" is not allowed'),
        ('[rate_limit.topics]\nt = "x"\n', 'rate_limit.topics.t = "x" is not allowed'),
        (
            '[logging.file]\nenable = true\nmode = "0444"\n',
            'logging.file.mode = "0444" is not allowed: the daemon\'s user could not write the file; give a mode such',
        ),
        ("[input.unix_datagram]\nenable = false\n", "No input is enabled: set input.unix_datagram.enable,"),
        (
            "[input.tcp]\nenable = true\nport = 9090\n",
            "input.tcp.port = 9090 is not allowed: http.listen uses this port; give another port.",
        ),
        (
            '[input.tcp]\nenable = true\nhost = "localhost"\nport = 9090\n',
            "input.tcp.port = 9090 is not allowed: http.listen uses this port; give another port.",
        ),
        (
            '[input.tcp]\nenable = true\nhost = "0.0.0.0"\nloopback_only = false\nport = 9090\n',
            "input.tcp.port = 9090 is not allowed: http.listen uses this port; give another port.",
        ),
        (
            '[input.unix_stream]\nenable = true\npath = "/run/bruce.dgram"\n',
            'input.unix_stream.path = "/run/bruce.dgram" is not allowed: input.unix_datagram.path uses this path',
        ),
        (
            '[input.tcp]\nenable = true\nhost = "0.0.0.0"\n',
            'input.tcp.host = "0.0.0.0" is not allowed: other hosts could reach this address; give 127.0.0.1, or set',
        ),
        ('[http]\nlisten = "unix:/run/bruce.dgram"\n', 'http.listen = "/run/bruce.dgram" is not allowed'),
        (
            '[discard_log]\nenable = true\nmax_file_size = "3m"\n',
            'discard_log.max_file_size = "3m" is not allowed: give at least 4m, twice the largest message',
        ),
    ],
)
def test_an_inconsistent_setting_is_named(load: Load, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '[batching.combined]\nenable = false\nconfig = "unused"\n',
        '[batching.default]\naction = "per_topic"\nconfig = "standard"\n',
        '[compression.configs.y]\ntype = "zstd"\nlevel = 22\n',
        '[discard_log]\nenable = true\nmax_file_size = "4m"\n',
        '[discard_log]\nmax_file_size = "1k"\n',
        "[input.unix_datagram]\nenable = false\n[input.tcp]\nenable = true\n",
        '[input.unix_stream]\npath = "/run/bruce.dgram"\n',
    ],
)
def test_consistent_settings_are_accepted(load: Load, text: str) -> None:
    load(text)


def test_all_inconsistent_settings_are_reported_together(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load('[compression]\ndefault = "x"\n[rate_limit]\ndefault = "y"\n')
    assert str(caught.value).count("\n") == 1
