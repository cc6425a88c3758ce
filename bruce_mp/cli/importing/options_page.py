"""Renderer of docs/migrating-options.md, which gives the new setting for each old option.

    python -m bruce_mp.cli.importing.options_page > docs/migrating-options.md

A test compares the page with the output.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.importing.settings import REMOVED_OPTIONS, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.cli.importing.settings import Setting

__all__ = ["ELEMENTS", "render"]

INTRODUCTION: Final = """\
# The options of Dory and Bruce

The [setting](configuration.md) for each old option; `bruce import-config` [converts](migrating.md) a whole
configuration. In the tables, *XML* is the path of the old setting below the root element of the file, and *option* is
the old command-line option.
`python -m bruce_mp.cli.importing.options_page` generates this page.
"""

ELEMENTS: Final = {
    "initialBrokers/broker": ("kafka.bootstrap_servers", "The attributes `host` and `port`, as `HOST:PORT`."),
    "batching/namedConfigs/config": ("batching.configs.NAME", "A limit with the value `disable` gets no new setting."),
    "batching/produceRequestDataLimit": ("batching.produce_request_data_limit", ""),
    "batching/messageMaxBytes": ("batching.message_max_bytes", ""),
    "batching/combinedTopics": ("batching.combined", ""),
    "batching/defaultTopic": ("batching.default", "The actions are `per_topic`, `combined` and `none`."),
    "batching/topicConfigs/topic": ("batching.topics.NAME", "The same actions."),
    "compression/namedConfigs/config": ("compression.configs.NAME", "Only gzip has a level."),
    "compression/sizeThresholdPercent": ("compression.size_threshold_percent", ""),
    "compression/defaultTopic": ("compression.default", ""),
    "compression/topicConfigs/topic": ("compression.topics.NAME", ""),
    "topicRateLimiting/namedConfigs/config": (
        "rate_limit.configs.NAME",
        "A limit with the value `unlimited` gets no new setting.",
    ),
    "topicRateLimiting/defaultTopic": ("rate_limit.default", ""),
    "topicRateLimiting/topicConfigs/topic": ("rate_limit.topics.NAME", ""),
    "httpInterface/port": ("http.listen", "The port; on the command line `--status_port`."),
    "httpInterface/loopbackOnly": ("http.listen", "The address; on the command line `--status_loopback_only`."),
}
"""The new key and a remark for each old element that `sections.py` converts."""


def render() -> str:
    return "\n".join([INTRODUCTION, *_options(), "", *_elements(), "", *_without_counterpart()]) + "\n"


def _options() -> Iterator[str]:
    yield "## Settings\n\n| XML | option | new setting |\n|---|---|---|"
    for setting in SETTINGS:
        yield f"| {_code(setting.xml_path)} | {_option(setting)} | `{setting.key}` |"
    yield ""
    for note in dict.fromkeys(setting.note for setting in SETTINGS if setting.note):
        yield f"* {', '.join(f'`{setting.key}`' for setting in SETTINGS if setting.note == note)}: {note}"


def _elements() -> Iterator[str]:
    yield "## Topics, brokers, status pages\n\n| XML | new setting | remark |\n|---|---|---|"
    for element, (key, remark) in ELEMENTS.items():
        yield f"| `{element}` | `{key}` | {remark} |"


def _without_counterpart() -> Iterator[str]:
    yield "## Options that are gone\n\n| option | remark |\n|---|---|"
    for note in dict.fromkeys(entry.note for entry in REMOVED_OPTIONS.values()):
        options = ", ".join(f"`--{option}`" for option, entry in REMOVED_OPTIONS.items() if entry.note == note)
        yield f"| {options} | {note[0].upper()}{note[1:]} |"


def _option(setting: Setting) -> str:
    """Return the option as code, followed by the value in parentheses if a switch sets a value other than true."""
    value = "" if setting.switch_value is True else f" ({str(setting.switch_value).lower()})"
    return _code(f"--{setting.option}" if setting.option else "") + value


def _code(text: str) -> str:
    """Return the text as code in Markdown, or an empty text as it is, because Markdown has no empty code."""
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    sys.stdout.write(render())
