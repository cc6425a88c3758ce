"""The example files and the reference page agree with the model."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import msgspec
import pytest
from msgspec import Struct

from bruce_mp.config.fields import LIVE, RESTART_FOR_SIZES, ReloadRule, plain, setting_type
from bruce_mp.config.load import load_config
from bruce_mp.config.model import Config
from bruce_mp.config.paths import LONGEST_SOCKET_NAME, RUN_DIR_MAX, SOCKET_PATH_MAX
from bruce_mp.config.reference import render
from bruce_mp.config.risky_settings import risk_warnings
from bruce_mp.config.sections import Kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FULL = ROOT / "conf" / "bruce.toml"
MINIMAL = ROOT / "conf" / "bruce.minimal.toml"
DEFAULTS = Config(kafka=Kafka(bootstrap_servers=("localhost:9092",)))


def settings(model: type[Struct], prefix: str = "") -> Iterator[str]:
    """Yield every key of the model; `*` stands for any name."""
    for field in msgspec.structs.fields(model):
        kind: Any = setting_type(field.type).type
        name = f"{prefix}{field.name}"
        if get_origin(kind) is dict:
            kind, name = get_args(kind)[1], f"{name}.*"
        if issubclass(kind if isinstance(kind, type) else object, Struct):
            yield from settings(kind, f"{name}.")
        else:
            yield name


def keys(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def uncommented() -> str:
    """Return the full example with its absent settings uncommented; their # has no space behind it."""
    return re.sub(r'^#(?=[\[\w"])', "", FULL.read_text(), flags=re.MULTILINE)


def test_both_files_are_the_defaults() -> None:
    assert load_config(MINIMAL) == DEFAULTS
    assert load_config(FULL) == DEFAULTS
    assert risk_warnings(DEFAULTS) == []


def test_the_full_file_has_every_setting() -> None:
    shown = list(keys(tomllib.loads(uncommented())))
    for setting in settings(Config):
        pattern = re.escape(setting).replace(r"\*", ".+")
        assert any(re.fullmatch(pattern, key) for key in shown), setting


def test_the_full_file_is_valid_with_every_setting_enabled(tmp_path: Path) -> None:
    path = tmp_path / "bruce.toml"
    without_config = uncommented().replace('action = "combined"\nconfig = "standard"', 'action = "combined"')
    # A secret may have only one source, a login only the settings of its mechanism, and old brokers have no login.
    alternatives = re.compile(
        r"^(broker_version|password_env|key_password_env|token_file|token_command|kerberos_principal"
        r"|kerberos_keytab_file|logicalCluster) = .*\n",
        re.MULTILINE,
    )
    on_unix_socket = without_config.replace('listen = "127.0.0.1:9090"', 'listen = "unix:/run/bruce.http"')
    path.write_text(alternatives.sub("", on_unix_socket))
    config = load_config(path)
    assert config.slab_path == DEFAULTS.slab_path
    assert config.batching_for(b"clicks").limits.messages == 1000


def test_every_setting_has_a_meaning() -> None:
    page = render()
    assert "| |" not in page
    assert "None" not in page


def test_the_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == render()


def test_the_longest_socket_fits_into_the_longest_run_directory() -> None:
    assert RUN_DIR_MAX == 89
    assert len(f"/{'x' * 88}/{LONGEST_SOCKET_NAME}") == SOCKET_PATH_MAX


def decisions(model: type[Struct], prefix: str = "") -> Iterator[tuple[str, ReloadRule | None]]:
    for item in msgspec.structs.fields(model):
        setting = setting_type(item.type)
        kind: Any = get_args(setting.type)[1] if get_origin(setting.type) is dict else setting.type
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from decisions(kind, f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}", setting.reload_rule


def test_every_setting_declares_when_a_change_applies() -> None:
    found = dict(decisions(Config))
    assert None not in found.values()
    assert found["slab.size"] == RESTART_FOR_SIZES
    assert found["rate_limit.topics"] == found["batching.configs.time_ms"] == LIVE


def test_a_setting_without_a_change_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="add LIVE, or restart"):
        setting_type(Annotated[bool, plain("Speak.")])
