#!/usr/bin/env python3
"""Write the manual pages of the commands, section 1, into a directory.

    scripts/render_man.py DIRECTORY             the pages of all commands
    scripts/render_man.py DIRECTORY PROGRAM     the pages of one program: `bruce` or `bruce-spark`

A page has the help of the command's parser, and the exit statuses that the docstring of the command's module lists.
argparse-manpage is not used, because it drops the text below the options, and splits names with a space, such as
`bruce slab inspect`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter
from inspect import cleandoc
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from unittest.mock import patch

from bruce_mp import __version__
from bruce_mp.cli import usage
from bruce_mp.cli.commands import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SPARK: Final = "bruce_mp.spark.cli"  # module of the command `bruce-spark`
SECTIONS: Final = {"positional arguments": "ARGUMENTS"}
"""Headings of argparse that a page replaces. It has the other headings in upper case."""
UNBROKEN: Final = "\N{NO-BREAK SPACE}"


class CommandHelp(NamedTuple):
    """A command with its parser, its summary, and the docstring of its module."""

    parser: ArgumentParser
    summary: str
    documentation: str

    @property
    def page(self) -> str:
        """Return the name of its page, such as bruce-check-config."""
        return self.parser.prog.replace(" ", "-")

    @property
    def program(self) -> str:
        return self.parser.prog.partition(" ")[0]


def all_commands() -> Iterator[CommandHelp]:
    """Yield `bruce`, its subcommands, and `bruce-spark`."""
    overview = usage.create_parser({})
    overview.epilog = None  # it lists the commands, and the page has a section for them
    yield CommandHelp(overview, "deliver messages of this host to Kafka", "")
    for command in COMMANDS.values():
        yield read_command(command.module, command.summary)
    yield read_command(SPARK, "run data pipelines on Spark, through the daemon of each host")


def read_command(module: str, summary: str) -> CommandHelp:
    imported = importlib.import_module(module)
    return CommandHelp(parser_of(module), summary, cleandoc(imported.__doc__ or ""))


class ParserFound(BaseException):
    """Ends a command when it would parse its arguments, and carries its parser to `parser_of`."""

    def __init__(self, parser: ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(module: str) -> ArgumentParser:
    """Return the parser that the module's `main` creates. `main` is interrupted when it starts to parse."""

    def stop(parser: ArgumentParser, *_: object) -> NoReturn:
        raise ParserFound(parser)

    with patch.object(ArgumentParser, "parse_args", stop):
        try:
            importlib.import_module(module).main([])
        except ParserFound as found:
            return found.parser
    raise LookupError(f"{module}.main parses no arguments")


# --- roff -------------------------------------------------------------------------------------------------------------
ESCAPES: Final = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "^": "\\(ha", "~": "\\(ti", UNBROKEN: "\\~"})


def escape(text: str) -> str:
    """Return the text with escapes for the characters that mean something to roff, and with `code` in bold."""
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fP", text.translate(ESCAPES))


def fill_lines(text: str) -> list[str]:
    """Return the escaped text in lines of at most 80 characters; only a longer word makes a longer line."""
    lines = wrap(escape(text), 80, break_long_words=False, break_on_hyphens=False)
    return [f"\\&{line}" if line.startswith(".") else line for line in lines]


class RoffFormatter(HelpFormatter):
    """Formatter for argparse that returns a parser's help as roff, from the synopsis of a manual page on."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=10_000)
        self._lines: list[str] = []
        self._heading = ".SH DESCRIPTION"
        """The heading to write before the next text or argument; empty after the first one of a section."""

    def add_usage(
        self, usage: str | None, actions: Iterable[Action], groups: Iterable[Any], prefix: str | None = None
    ) -> None:
        _ = prefix
        synopsis = self._format_usage(usage, actions, groups, "").strip().removeprefix(self._prog)
        options = synopsis.replace(" [-h]", "", 1).strip()
        unbroken = re.sub(r"\[[^][|]*\]", lambda found: found[0].replace(" ", UNBROKEN), options)
        self._lines += [".SH SYNOPSIS", f".B {escape(self._prog)}", *fill_lines(unbroken)]

    def start_section(self, heading: str | None) -> None:
        self._heading = f".SH {SECTIONS.get(heading or '', (heading or '').upper())}"

    def end_section(self) -> None:
        self._heading = ".SH NOTES"

    def add_text(self, text: str | None) -> None:
        # Not the exit statuses of the help: `render` writes those of the docstring, which says more about them.
        if text is not None and not text.startswith("Exit status: "):
            self._lines += [self._heading or ".PP", *fill_lines(text)]
            self._heading = ""

    def add_arguments(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action.choices, dict):  # the parsers of subcommands
                self._lines += [line for parser in action.choices.values() for line in lines_of_subcommand(parser)]
            elif action.help is not SUPPRESS and action.dest != "help":
                self._lines += [self._heading, ".TP", self._invocation(action), *fill_lines(self._expand_help(action))]
                self._heading = ""

    def _invocation(self, action: Action) -> str:
        """Return the options in bold, each with its value in italics."""
        if not action.option_strings:
            return f"\\fI{escape(self._metavar_formatter(action, action.dest)(1)[0])}\\fP"
        value = "" if action.nargs == 0 else f" \\fI{escape(self._format_args(action, action.dest.upper()))}\\fP"
        return ", ".join(f"\\fB{escape(option)}\\fP{value}" for option in action.option_strings)

    def format_help(self) -> str:
        return "\n".join(filter(None, self._lines))


def lines_of_subcommand(parser: ArgumentParser) -> list[str]:
    """Return the help of a subcommand as a section of its command's page.

    The sections of the help become subsections, except for its synopsis and description, which need no headings.
    """
    _, *lines = lines_of(parser)  # without the heading of the synopsis
    headings = {".SH DESCRIPTION": ".PP"}
    below = [headings.get(line, line.replace(".SH", ".SS", 1)) for line in lines]
    return [f".SH {escape(parser.prog).upper()}", *below]


def lines_of(parser: ArgumentParser) -> list[str]:
    """Return the help of a parser as lines of roff."""
    parser.formatter_class = RoffFormatter
    return parser.format_help().splitlines()


def render(command: CommandHelp, references: Sequence[CommandHelp]) -> str:
    """Return the page of a command; it lists `references`, which are other commands, or refers to them at its end."""
    built = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    date = time.strftime("%Y-%m-%d", built)
    lines = [
        f'.TH {escape(command.page).upper()} 1 "{date}" "bruce {__version__}" "User Commands"',
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{escape(command.page)} \\- {escape(command.summary)}",
        *lines_of(command.parser),
    ]
    if found := re.search(r"(?:^|\s)Exit status: (.*?)(?:\n\n|\Z)", command.documentation, re.DOTALL):
        lines += [".SH EXIT STATUS", *fill_lines(found[1])]
    if command.page == "bruce":
        lines.append(".SH COMMANDS")
        for each in references:
            lines += [".TP", f".BR {escape(each.page)} (1)", escape(each.summary)]
    else:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{escape(each.page)}\\fP(1)" for each in references)]
    return "\n".join(lines) + "\n"


def main(directory: Path, programs: Sequence[str]) -> None:
    commands = list(all_commands())
    directory.mkdir(parents=True, exist_ok=True)
    for command in commands:
        if programs and command.program not in programs:
            continue
        others = [each for each in commands if each.page != command.page and each.program == "bruce"]
        listed = others if command.page == "bruce" else others[:1]
        (directory / f"{command.page}.1").write_text(render(command, listed))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
