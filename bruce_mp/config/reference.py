"""Render the reference page `docs/configuration.md` from the model of the configuration.

`python -m bruce_mp.config.reference > docs/configuration.md` writes the page; a test compares the page and the output.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Final, get_origin

import msgspec
from msgspec import NODEFAULT

from bruce_mp.config.fields import LIVE, setting_type
from bruce_mp.config.model import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Struct
    from msgspec.structs import FieldInfo

    from bruce_mp.config.fields import SettingType

__all__ = ["render"]

INTRODUCTION: Final = """\
# Configuration

Each setting of the daemon's TOML file, its default and its notation.

| command or file | use |
|---|---|
| `bruce check-config FILE` | list the faults of the file, and of its users, groups, secrets and directories |
| `bruce check-config FILE --connect` | also [ask the brokers](operating.md#before-the-first-start) |
| `bruce run --config FILE` | start the daemon, which also checks the addresses |
| `bruce reload` | [apply](operating.md#changing-the-configuration) a changed file |
| `--set slab.size=256m` | override a setting; repeatable, and kept by a reload |
| `conf/bruce.minimal.toml` | an example: only `kafka.bootstrap_servers` is required |
| `conf/bruce.toml` | every setting with its default |

## How values are written

| type | form |
|---|---|
| size | bytes: an integer, or a string with `k`, `m` or `g` (powers of 1024), such as `"64k"` |
| range `1..5` | an integer; durations in the unit that ends the key (`_ms`, `_s`, `_min`) |
| mode | an octal string: `"0222"` |
| path, 107 bytes | an absolute path, here of at most 107 bytes |
| address | `"host:port"`, for `http.listen` also `"unix:/path"` |
| list | strings: the absolute path of a program and its arguments |
| accounts | a list of names or numbers |

A name with other characters than letters, digits, `_` and `-` needs quotes: `[batching.topics."a topic"]`. A setting
without a default may be absent. The *state directory* is the directory of the slab. For a slab below `/dev/shm`,
which is memory, it is systemd's `$STATE_DIRECTORY` or, if that is not set, `/var/tmp`.

## Changing it

A reload applies all changes while messages flow; it loses, doubles and reorders none. It refuses a faulty file, and a
change of a setting marked **restart**.

## How batches are made

A batch is sent once it reaches one of its limits.

| action of a topic | batch |
|---|---|
| `per_topic` | a batch for each partition of the topic |
| `combined` | one batch for all combined topics of a broker |
| `none` | each message is sent at once |

```toml
[batching.configs.quick]
time_ms = 20
messages = 1000

[batching.topics.clicks]
action = "per_topic"
config = "quick"
```

## Settings
"""

HEADER: Final = "| key | allowed | default | meaning |\n|---|---|---|---|\n"


def render() -> str:
    """Return the page as Markdown."""
    return INTRODUCTION + "".join(_sections(Config, prefix="", first_sections={}))


def _sections(model: type[Struct], prefix: str, first_sections: dict[str, str]) -> Iterator[str]:
    """Yield the text of each section in a model, recursively. `first_sections` has the first section of each row."""
    for field in msgspec.structs.fields(model):
        name, setting = f"{prefix}{field.name}", setting_type(field.type)
        if get_origin(setting.type) is dict:
            name, setting = f"{name}.NAME", setting.entry_type
        if setting.is_section:
            yield _section(setting.type, name, first_sections)
            yield from _sections(setting.type, f"{name}.", first_sections)


def _section(model: type[Struct], name: str, first_sections: dict[str, str]) -> str:
    """Return heading, description and table of one section, without its subsections."""
    rows = "".join(_without_repeated(list(_rows(model)), name, first_sections))
    return f"\n### `[{name}]`\n\n{inspect.getdoc(model)}\n" + (f"\n{HEADER}{rows}" if rows else "")


def _without_repeated(rows: list[str], name: str, first_sections: dict[str, str]) -> Iterator[str]:
    """Yield the rows of section `name`. If an earlier section has two or more of them, refer to that section instead.

    `first_sections` maps each row to the first section that has the row; the call adds the new rows.
    """
    origins = [first_sections.setdefault(row, name) for row in rows]
    for row, section in zip(rows, origins, strict=True):
        shared = [other for other, origin in zip(rows, origins, strict=True) if origin == section]
        if section == name or len(shared) == 1:
            yield row
        elif row == shared[0]:  # one reference replaces all shared rows
            keys = ", ".join(each.split("|")[1].strip() for each in shared)
            yield f"| {keys} |  |  | As in `[{section}]`. |\n"


def _rows(model: type[Struct]) -> Iterator[str]:
    """Yield a table row for each setting and each map of settings; `NAME` stands for the name of a map's entry."""
    for field in msgspec.structs.fields(model):
        setting = setting_type(field.type)
        if get_origin(setting.type) is not dict:
            name, default = field.name, _default(field, setting)
        else:
            name, default, setting = f"{field.name}.NAME", "", setting.entry_type
        if not setting.is_section:
            restart = "**restart.** " if setting.reload_rule != LIVE else ""
            yield f"| `{name}` | {setting.summary} | {default} | {restart}{setting.meaning} |\n"


def _default(field: FieldInfo, setting: SettingType) -> str:
    if field.default is NODEFAULT:
        return "*required*"
    return "" if field.default is None else f"`{setting.show(field.default)}`"


if __name__ == "__main__":
    sys.stdout.write(render())
