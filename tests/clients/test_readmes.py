"""The first message of each README is sent as a new user would send it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from support.client_programs import CLIENTS, LANGUAGES, SHORT, build
from support.processes import run_program
from support.read_back import records_in
from support.stream_inputs import ONE_WORKER, daemon_in

if TYPE_CHECKING:
    from pathlib import Path

    from support.daemon import Daemon

pytestmark = pytest.mark.process

FIRST: Final = {
    "c": (
        "first.c",
        """
        make -s -C {library} install PREFIX={here}/usr
        cc -o first first.c $(PKG_CONFIG_PATH={here}/usr/lib/pkgconfig pkg-config --cflags --libs bruce)
        LD_LIBRARY_PATH={here}/usr/lib ./first
        """,
    ),
    "go": (
        "main.go",
        """
        go mod init first
        go mod edit -require bruce@v0.0.0 -replace bruce={library}
        go run .
        """,
    ),
    "java": ("First.java", "java -cp {library}/target/bruce-client-1.0.0.jar First.java"),
    "rust": (
        "main.rs",
        """
        mkdir src && mv main.rs src
        cargo init --quiet --name first .
        echo 'bruce-client = {{ path = "{library}" }}' >> Cargo.toml
        cargo run --quiet --offline
        """,
    ),
    "node": ("first.js", "npm install --silent --offline {library} && node first.js"),
    "ruby": ("first.rb", "cp {library}/bruce.rb . && ruby first.rb"),
    "php": ("first.php", "cp {library}/Bruce.php . && php first.php"),
}
"""By language: the name of the file, and the commands that run it."""


def first_message(name: str, directory: Path) -> str:
    """Return the first program of a README, with the addresses of our daemon."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", (CLIENTS / name / "README.md").read_text(), re.DOTALL)
    program: str = next(text for kind, text in blocks if kind not in {"shell", "toml", "xml"} and "hello" in text)
    return program.replace("/run/bruce/", f"{directory}/")


def send_first_message(name: str, daemon: Daemon) -> None:
    build(name)
    file, commands = FIRST[name]
    here = daemon.directory / name
    here.mkdir()
    (here / file).write_text(first_message(name, daemon.directory))
    script = commands.format(library=CLIENTS / name, here=here)
    run_program("sh", "-ec", script, directory=here, time_limit_s=300)


@pytest.mark.parametrize(
    "names", [SHORT, pytest.param(tuple(LANGUAGES), marks=pytest.mark.clients)], ids=["some languages", "all languages"]
)
def test_the_first_message_of_a_readme_arrives(names: tuple[str, ...], tmp_path: Path) -> None:
    with DevBroker(brokers=1, topics={"clicks": 1}) as broker, daemon_in(tmp_path, broker, **ONE_WORKER) as daemon:
        for number, name in enumerate(names, 1):
            send_first_message(name, daemon)
            daemon.wait_settled(number)
        records = records_in(broker, "clicks")
    assert [(record.key, record.value) for record in records] == [(b"user-7", b"hello")] * len(names)
