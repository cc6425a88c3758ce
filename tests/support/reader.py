"""A simulated reader that types the commands of a documentation page, in a directory used as a host's root.

    with Reader() as reader:
        reader.start_default_daemon()  # a broker and a daemon with all inputs, unless the page starts its own
        for block in blocks_of(page):
            reader.follow(block)

Paths such as /etc/bruce and ports become those of this directory and test. All other words stay: `bruce run` and
`bruce dev-broker` run in the foreground of separate terminals, other lines go to bash and Python.  `discarded` waits
until all received messages are settled, and asserts that the books balance.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bruce_mp.config.load import load_config
from bruce_mp.spark.cli import _create_parser as parser_of_spark
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS, TCP_ADDRESS
from support import processes
from support.doc_pages import ROOT, commands_in
from support.ports import ReservedPort
from support.processes import time_limit, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from support.doc_pages import Block

__all__ = ["Reader"]

WAIT_S: Final = 60
PLACES: Final = r"(?<![\w.}])/(?=(?:run|etc/bruce|etc/dory|var|dev/shm|opt|data)/|run\b|tmp/bruce-try)"
"""The directories of the pages' files; the reader uses directories of the test instead."""
BROKERS: Final = r"\b(?:kafka\d?|localhost|127\.0\.0\.1):(?:9092|19092)\b"
AS_THE_DAEMON: Final = "sudo -u bruce /opt/bruce/bin/"
"""The prefix of commands that pages run as the daemon's user; tests run as that user, with `bruce` on the path."""
DEFAULT_CONFIG: Final = """
[kafka]
bootstrap_servers = ["localhost:9092"]
[daemon]
run_dir = "/run/bruce/private"
[input.unix_datagram]
path = "/run/bruce/in.dgram"
[input.unix_stream]
enable = true
path = "/run/bruce/in.stream"
[input.tcp]
enable = true
port = 0
[logging]
format = "json"
level = "INFO"
"""
PROGRAMS: Final = {
    "bruce": f'exec "{sys.executable}" -m bruce_mp "$@"',
    "python3": f'exec "{sys.executable}" "$@"',
    "pip": "exit 0",  # the packages are installed already
}


class Reader:
    """Types commands in a home directory, with a terminal for each program that stays in the foreground."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="d"))  # a short path: sockets will be below it
        self.home = self.root / "home"
        self._kafka = ReservedPort()
        self._url = ""
        self._tcp = "9000"
        self._stack = ExitStack()
        self._toml = ""
        self._last_command = ""
        self.terminals: dict[str, Path] = {}
        """The output of each program in the foreground, by its name."""
        for name in ("home", "bin", "run/bruce", "etc/bruce", "etc/dory", "dev/shm", "var/lib/nagios", "var/log/bruce"):
            (self.root / name).mkdir(parents=True)
        for name, script in PROGRAMS.items():
            (self.root / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.root / "bin" / name).chmod(0o755)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            for name, terminal in self.terminals.items() if kind else ():
                sys.stderr.write(f"--- {name}\n{terminal.read_text()}\n")
        finally:
            self._stack.close()
            self._kafka.release()
            shutil.rmtree(self.root)

    def _wait_settled(self) -> None:
        wait_until(self._is_settled, "all messages to be settled", WAIT_S)
        books = self.books()
        assert books["received"] == books["delivered"] + sum(books["discarded"].values()), books

    def _is_settled(self) -> bool:
        books = self.books()
        return books["consistent"] and not sum(books["held"].values())

    def books(self) -> dict[str, Any]:
        """Return the books of the daemon that the reader has started."""
        with urllib.request.urlopen(f"{self._url}/books/json", timeout=10) as answer:
            return dict(json.load(answer))

    def discarded(self) -> dict[str, int]:
        """Wait until all messages are settled, and return the discarded ones by reason."""
        self._wait_settled()
        return dict(self.books()["discarded"])

    def start_default_daemon(self) -> None:
        """Start a broker and a daemon, for pages that assume them."""
        self._toml = DEFAULT_CONFIG
        self._write_configuration(["bruce run --config /etc/bruce/bruce.toml"])
        if not self.terminals:
            topics = "--topic clicks:3 --topic rows:1 --topic logs:1"
            self._type([f"bruce dev-broker --port 19092 {topics}", "bruce run --config /etc/bruce/bruce.toml"])

    # --- following ---------------------------------------------------------------------------------------------------

    def follow(self, block: Block, given: str = "") -> None:
        """Run a block after `given`, the page's unstated preparation, in the language of the block."""
        actions: dict[str, Callable[[Block, str], None]] = {
            "toml": self._configure,
            "shell": self._follow_shell,
            "console": self._follow_shell,
            "python": self._follow_python,
            "json": self._compare_log,
            "text": self._compare_output,
        }
        assert block.language in actions, f"{block.page}:{block.line}: the reader cannot follow {block.language!r}"
        actions[block.language](block, given)

    def _configure(self, block: Block, given: str) -> None:
        text = given + block.text
        if "bootstrap_servers" not in text:
            text = '[kafka]\nbootstrap_servers = ["localhost:9092"]\n' + text
        self._toml = text
        path = self.home / "shown.toml"
        path.write_text(self._adapted(text))
        load_config(path)

    def _follow_shell(self, block: Block, given: str) -> None:
        self._type([*given.splitlines(), *commands_in(block)])

    def _follow_python(self, block: Block, given: str) -> None:
        self._run([sys.executable, "-W", "error::SyntaxWarning", "-c", self._adapted(f"{given}\n{block.text}")])

    def _compare_log(self, block: Block, _: str) -> None:
        """Check that the object has the fields of the daemon's log lines."""
        written = [json.loads(line) for line in self.terminals["run"].read_text().splitlines()]
        assert json.loads(block.text).keys() in [line.keys() for line in written]

    def _compare_output(self, block: Block, _: str) -> None:
        """Repeat the last command until its output is that of the block, except for numbers."""
        shown = _without_numbers(block.text)
        wait_until(lambda: _without_numbers(self._bash(self._last_command)) == shown, repr(shown), WAIT_S)

    # --- typing ------------------------------------------------------------------------------------------------------

    def _type(self, lines: list[str]) -> None:
        """Type the lines in order; those between two programs that stay in the foreground are one script."""
        lines = [line.removeprefix(AS_THE_DAEMON) for line in lines]
        self._write_configuration(lines)
        script: list[str] = []
        for line in lines:
            words = (
                shlex.split(self._adapted(line).removesuffix("&"), comments=True) if line.startswith("bruce") else []
            )
            if words[:1] == ["bruce-spark"]:
                parser_of_spark().parse_args(words[1:])
            elif words[1:2] in (["run"], ["dev-broker"]) and words[2:3] != ["control"]:
                self._bash("\n".join(script))
                self._serve(words[1], words[2:])
                script = []
            else:
                script.append(line)
        self._bash("\n".join(script))
        self._last_command = lines[-1]

    def _write_configuration(self, lines: list[str]) -> None:
        """Store the last shown config at the path of a `bruce run`, unless another command writes that file."""
        for line in lines:
            found = re.match(r"bruce run --config (\S+)", line)
            if found and not any(f"> {found[1]}" in other for other in lines):
                (self.home / self._adapted(found[1])).write_text(self._adapted(self._toml))

    def _bash(self, script: str) -> str:
        return self._run(["bash", "-eu", "-o", "pipefail", "-c", self._adapted(script)]) if script else ""

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.home, env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=time_limit(WAIT_S), text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command[-1]}\nended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        path = f"{self.root / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        changed = {"PATH": path, "HOME": str(self.home), "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
        # A reader's Python buffers its output; an empty value means unset.
        return {**os.environ, **changed, "PYTHONUNBUFFERED": ""}

    def _adapted(self, text: str) -> str:
        """Replace the paths, ports and addresses of a page by those of this test."""
        text = re.sub(PLACES, f"{self.root}/", text)
        text = re.sub(BROKERS, f"127.0.0.1:{self._kafka.number}", text)
        text = text.replace("--port 19092", f"--port {self._kafka.number}").replace(
            "--port 9000", f"--port {self._tcp}"
        )
        text = text.replace("http://127.0.0.1:9090", self._url)
        text = text.replace("--count 100000", "--count 20000")  # enough for kills, and quicker
        return re.sub(r"\b(bruce (?:check|status))(?=$| \|)", rf"\1 --url {self._url}", text, flags=re.MULTILINE)

    # --- programs in the foreground --------------------------------------------------------------------------------

    def _serve(self, name: str, arguments: list[str]) -> None:
        if name == "run":
            self._serve_daemon(self.home / arguments[arguments.index("--config") + 1])
        else:
            self._start(name, arguments)
            wait_until(lambda: "CONTROL" in self.terminals[name].read_text(), "the broker", WAIT_S)

    def _serve_daemon(self, config: Path) -> None:
        slab = self.root / "dev/shm/bruce-run-bruce.slab"
        settings = [f"--set=slab.path={slab}", "--set=slab.size=64m", "--set=http.listen=127.0.0.1:0"]
        run_dir = Path(load_config(config).daemon.run_dir)
        daemon = self._start("run", ["--config", str(config), *settings])
        place = run_dir / HTTP_ADDRESS
        wait_until(lambda: self._has_pages(place) or daemon.poll() is not None, "the daemon to answer", WAIT_S)
        assert daemon.poll() is None, "the daemon ended at once"
        if (run_dir / TCP_ADDRESS).exists():
            self._tcp = (run_dir / TCP_ADDRESS).read_text().strip().rpartition(":")[2]

    def _has_pages(self, address: Path) -> bool:
        """Return True if the status pages can be read at the address in a file."""
        try:
            self._url = f"http://{address.read_text().strip().removeprefix('http://').rstrip('/')}"
            self.books()
        except OSError:
            return False
        return True

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        self.terminals[name] = self.root / f"{name}.out"
        env = None if name == "run" else self._environment()  # a daemon reads none of these, and so may be forked
        with self.terminals[name].open("wb") as output:
            process = processes.spawn([*processes.BRUCE, name, *arguments], output=output, env=env)
        processes.long_lived_trees.add(process.pid)
        self._stack.callback(process.wait, WAIT_S)
        self._stack.callback(process.terminate)
        return process


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "N", text).strip()
