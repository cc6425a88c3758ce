"""The reference page of the configuration, rendered from the model: `docs/configuration.md` is this and nothing else.

Write it anew with `python -m bruce_mp.config.reference > docs/configuration.md`; a test compares the two.
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

The daemon reads one TOML file: `bruce run --config FILE`. `conf/bruce.minimal.toml` is the least that works;
`conf/bruce.toml` shows every setting with its default. `bruce check-config FILE` reads a file as the daemon would and
says what is wrong with it: every problem at once, each with its key, its value and what is allowed. It looks at the
file, and at the users, groups and secrets that it names. Whether directories can be written to, addresses are free and
brokers answer shows at the start.

`--set key=value` lays one setting over the file, as often as it is given: `--set slab.size=256m`,
`--set 'kafka.bootstrap_servers=["localhost:9092"]'`. The value is written as in the file; one that is not TOML is taken
as a string, so that most strings need no quotes.

## How values are written

- **Sizes** are bytes: an integer, or a string with `k`, `m` or `g` (powers of 1024), for example `65536` or `"64k"`.
- **Durations** are integers in the unit that the key ends in: `_ms`, `_s`, `_min`.
- **Modes** are octal strings: `"0222"`.
- **Paths** are absolute.
- **Names of topics and configs** may hold any characters; other than letters, digits, `_` and `-` need quotes:
  `[batching.topics."a topic"]`.
- An unknown key is an error. A setting whose default is *absent* is left out, or commented out, to have that default.

## Changing it

SIGHUP to the daemon, or `bruce reload`, has it read the file again; `bruce reload --check` only says what would happen.
The file is checked as at a start. Then all that was changed is applied while messages flow, without losing, doubling or
reordering any; the column *reload* says for which settings that works. If one was changed for which only a restart
helps, or the file is wrong, the whole is refused and the old configuration stays in force.

- What is laid over the file with `--set` stays laid over it.
- What has been gathered for a batch under limits that were changed is sent at once.
- Other brokers, credentials or certificates: each connection is replaced when what was sent on it is acknowledged.
  Metadata is asked for with the new ones at once.

## How batches are made

A topic's messages are gathered by one of three actions. `per_topic`: in a batch of its own, whose messages go to one
partition together. `combined`: with those of all other combined topics that go to the same broker. `none`: not at all.
A batch is sent when the first of its limits is reached.

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
    """The page, as Markdown."""
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
    """Whether a reload applies a change."""
    why = leaf.applies.restart_because if leaf.applies is not None else ""
    return f"restart: {why}" if why else "yes"


def _default(field: FieldInfo, leaf: Leaf) -> str:
    if field.default is NODEFAULT:
        return "*required*"
    return "absent" if field.default is None else f"`{leaf.show(field.default)}`"


if __name__ == "__main__":
    sys.stdout.write(render())
