"""Render the page `docs/configuration.md` from the model.

Run `python -m bruce_mp.config.reference > docs/configuration.md`; a test compares page and output.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from bruce_mp.config.fields import leaf_of
from bruce_mp.config.model import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec.structs import FieldInfo

    from bruce_mp.config.fields import Leaf

__all__ = ["render"]

INTRODUCTION: Final = """\
# Configuration

The daemon reads one TOML file:

| you want to | do |
|---|---|
| start with a file | `bruce run --config FILE` |
| see the least that works | `conf/bruce.minimal.toml` |
| see every setting with its default | `conf/bruce.toml` |
| check a file | `bruce check-config FILE` |
| override a setting, repeatable | `--set slab.size=256m`, `--set 'kafka.bootstrap_servers=["localhost:9092"]'` |
| apply a changed file | `bruce reload`, or SIGHUP to the daemon |

`bruce check-config` lists every fault with its key, its value and the allowed values. It checks the file and the
users, groups and secrets that it names. It does not test directory permissions, addresses or brokers; `bruce run`
does. `--set` takes a value as the file would have it; a value that is not TOML counts as a string, so most strings
need no quotes.

## How values are written

- **Sizes** are bytes: an integer, or a string with `k`, `m` or `g` (powers of 1024), for example `65536` or `"64k"`.
- **Durations** are integers in the unit that ends the key: `_ms`, `_s`, `_min`.
- **Modes** are octal strings: `"0222"`.
- **Paths** are absolute.
- **Names of topics and configs** may hold any characters; characters other than letters, digits, `_` and `-` need
  quotes: `[batching.topics."a topic"]`.
- An unknown key is an error. To get a default of *absent*, leave the setting out or comment it out.

## Changing it

`bruce reload --check` shows the effect of a reload; `bruce reload` applies it. The daemon checks the file as at a
start, then applies all changes while messages flow, without losing, doubling or reordering any. The column *reload*
names the settings that need a restart. If one of these changed, or the file is wrong, the daemon refuses the whole
reload and keeps the old configuration.

- Overrides given with `--set` stay in force.
- Messages gathered under changed batch limits are sent at once.
- Other brokers, credentials or certificates: the daemon requests metadata with them at once, and replaces each
  connection when its outstanding requests are acknowledged.

## How batches are made

| action of a topic | batch |
|---|---|
| `per_topic` | the topic's own; its messages go to one partition together |
| `combined` | shared with all other combined topics of the same broker |
| `none` | no batching |

The first limit reached sends the batch.

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

HEADER: Final = "| key | allowed | default | reload | meaning |\n|---|---|---|---|---|\n"


def render() -> str:
    """Return the page as Markdown."""
    return INTRODUCTION + "".join(_sections(Config, ""))


def _sections(model: type[Struct], prefix: str) -> Iterator[str]:
    for field in msgspec.structs.fields(model):
        name, kind = f"{prefix}{field.name}", leaf_of(field.type).type
        if get_origin(kind) is dict:
            name, kind = f"{name}.NAME", get_args(kind)[1]
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield _section(kind, name)
            yield from _sections(kind, f"{name}.")


def _section(model: type[Struct], name: str) -> str:
    rows = "".join(_rows(model))
    return f"\n### `[{name}]`\n\n{inspect.getdoc(model)}\n" + (f"\n{HEADER}{rows}" if rows else "")


def _rows(model: type[Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(model):
        leaf = leaf_of(field.type)
        if get_origin(leaf.type) is dict:
            value = leaf_of(get_args(leaf.type)[1])
            if not issubclass(_class(value.type), Struct):
                yield _row(f"{field.name}.NAME", value.allowed, "absent", value if value.meaning else leaf)
        elif not issubclass(_class(leaf.type), Struct):
            yield _row(field.name, leaf.allowed, _default(field, leaf), leaf)


def _class(annotation: Any) -> type:
    return annotation if isinstance(annotation, type) else object


def _row(key: str, allowed: str, default: str, leaf: Leaf) -> str:
    return f"| `{key}` | {allowed} | {default} | {_reload(leaf)} | {leaf.meaning} |\n"


def _reload(leaf: Leaf) -> str:
    """Return the cell of the column *reload*."""
    why = leaf.applies.restart_because if leaf.applies is not None else ""
    return f"restart: {why}" if why else "yes"


def _default(field: FieldInfo, leaf: Leaf) -> str:
    if field.default is NODEFAULT:
        return "*required*"
    return "absent" if field.default is None else f"`{leaf.show(field.default)}`"


if __name__ == "__main__":
    sys.stdout.write(render())
