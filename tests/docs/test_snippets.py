"""Every fenced block of the documentation is tried as a reader would, or says here why not.

A new block is tried without further ado: configurations are loaded, commands and Python are run against a broker and a
daemon.  What it takes for granted goes into `GIVEN`.  One that cannot be tried here has an entry in `ELSEWHERE`, with the
test that tries it, or in `NOT_TRIED`, with the reason.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from support.doc_pages import PAGES, ROOT, Block, all_blocks, blocks_of, name_of
from support.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

Key = tuple[str, str]

BROKERS: Final = '<initialBrokers><broker host="kafka-1" port="9092"/></initialBrokers>'
DORY: Final = f'<doryConfig>{BROKERS}<inputSources><unixDatagram enable="true"><path value="/var/run/in"/></unixDatagram></inputSources></doryConfig>'
BRUCE: Final = f"<bruceConfig>{BROKERS}</bruceConfig>"

ELSEWHERE: Final[dict[Key, str]] = {
    ("README.md", "scripts/demo"): "tests/test_demo.py::test_the_demo_tells_its_story_and_leaves_nothing",
    ("README.md", "received 5314 = delivered 5314 + discarded 0 + held 0"):
        "tests/test_demo.py::test_the_demo_tells_its_story_and_leaves_nothing",
    ("README.md", 'df.selectExpr("to_json(struct(*)) as value").write.format("bruce").mode("append").option("topic", "clicks").save('):
        "tests/spark/test_document.py::test_the_python_shown_writes",
    ("docs/spark.md", 'df.selectExpr("to_json(struct(*)) as value").write.format("bruce").mode("append").option("topic", "clicks").save('):
        "tests/spark/test_document.py::test_the_python_shown_writes",
    ("docs/status.md", "def topic_bytes(text: str) -> bytes:"):
        "tests/status/test_text.py::test_the_documents_give_this_inverse",
}  # fmt: skip
NOT_TRIED: Final[dict[Key, str]] = {
    ("README.md", "python3 -m venv /opt/bruce"): "fetches libraries; scripts/demo and scripts/test install the same way",
    ("README.md", "scripts/test"): "is what runs this",
    ("docs/getting-started.md", "python3 -m venv ~/bruce-venv"): "fetches libraries; scripts/demo installs the same way",
    ("docs/getting-started.md", "d /run/bruce 0755 bruce bruce -"): "needs root, and the user of the line below",
    ("docs/getting-started.md", "useradd --system --shell /usr/sbin/nologin bruce"): "makes a user of this host",
    ("docs/clients/README.md", "int32 Size | int16 256 | int16 0 | int16 0 |                    int16 T | topic | int64 ms | int32 K | key | int32 V | value"): "a layout; tests/protocol/test_client_wire.py has it",
    ("docs/slab.md", "now: MS ts: MS event: DISC info: SLAB topic: 6[clicks] key: 4[a2V5] msg: 8[dmFsdWU=] pkey: 17"): "a layout; tests/cli/test_slab.py has it",
    ("docs/status.md", "ts: TS topic: LEN[T] key: LEN[B64] value: LEN[B64]"): "a layout; tests/status/test_debug_files.py has it",
    ("docs/architecture.md", " clients ──datagrams──▶ input ──RUNS──▶ router ──BATCH, QUEUE, SENT, words──▶ dispatcher 0..n ──Produce──▶ broker"): "a drawing",
}  # fmt: skip
DRAWN: Final = {"mermaid"}
"""Languages of blocks that are rendered from code: test_states.py."""
GIVEN: Final[dict[Key, str]] = {
    ("README.md", "bruce check-config bruce.toml"): "bruce dev-broker --port 19092 --topic clicks:3",
    ("README.md", "bruce send --socket-path /run/bruce.dgram --topic clicks --value hello"):
        "printf 'one\\ntwo\\n' > /var/log/dpkg.log",
    ("docs/getting-started.md", "bruce dev-broker --port 19092 --topic clicks:3"): "mkdir -p /tmp/bruce-try",
    ("docs/clients/README.md", "bruce send --socket-path /run/bruce.dgram --topic clicks --value hello"):
        "printf 'one\\ntwo\\n' > access.log; printf picture > picture.png",
    ("docs/clients/README.md", "from bruce_mp.client import DatagramClient, StreamClient, TcpClient"):
        "rows = [b'one', b'two']",
    ("docs/migrating.md", "bruce import-config /etc/dory/dory_conf.xml > /etc/bruce/bruce.toml"):
        f"cat > /etc/dory/dory_conf.xml <<END\n{DORY}\nEND",
    ("docs/migrating.md", 'bruce import-config --command-line "bruce --config_path /etc/bruce/bruce_conf.xml --msg_buffer_max 65536 \\'):
        f"cat > /etc/bruce/bruce_conf.xml <<END\n{BRUCE}\nEND",
    ("docs/slab.md", "$ bruce slab inspect /dev/shm/bruce-run-bruce.slab"):
        "cp /dev/shm/bruce-run-bruce.slab /dev/shm/bruce-run-bruce.slab.damaged-1800000000000",
    ("docs/spark.md", "$ pip install 'bruce-mp[spark]'"):
        "bruce dev-broker --port 19092\nprintf '[kafka]\\nbootstrap_servers = [\"localhost:9092\"]\\n[input.unix_datagram]\\npath = \"/run/in\"\\n[daemon]\\nrun_dir = \"/run/private\"\\n' > bruce.toml",
}  # fmt: skip
"""By block: what its page takes for granted, in the block's language, done before it."""
OWN_DAEMON: Final = {"README.md", "docs/getting-started.md", "docs/spark.md"}
"""Pages that start a daemon themselves."""
DISCARDED: Final = {"docs/getting-started.md": {"BAD_TOPIC": 1}}
"""What a page has the daemon discard on purpose."""


def is_tried(block: Block) -> bool:
    return block.language not in DRAWN and block.key not in ELSEWHERE.keys() | NOT_TRIED.keys()


def pages(languages: set[str], *, own_daemon: bool) -> list[Path]:
    """Those that start a daemon or do not, and show something in one of the languages."""
    shown = {block.page for block in all_blocks() if is_tried(block) and block.language in languages}
    return [page for page in PAGES if name_of(page) in shown and (name_of(page) in OWN_DAEMON) == own_daemon]


def follow(reader: Reader, page: Path) -> None:
    before = reader.discarded() if reader.terminals else {}
    for block in filter(is_tried, blocks_of(page)):
        reader.follow(block, GIVEN.get(block.key, ""))
    if reader.terminals:
        assert reader.discarded() == before | DISCARDED.get(name_of(page), {})


@pytest.fixture(scope="module")
def standing() -> Iterator[Reader]:
    with Reader() as reader:
        yield reader


ALL: Final = {block.language for block in all_blocks()}


@pytest.mark.process
@pytest.mark.parametrize("page", pages(ALL, own_daemon=True), ids=name_of)
def test_pages_that_start_a_daemon_work(page: Path) -> None:
    with Reader() as reader:
        follow(reader, page)


@pytest.mark.process
@pytest.mark.parametrize("page", pages(ALL, own_daemon=False), ids=name_of)
def test_pages_that_have_a_daemon_work(page: Path, standing: Reader) -> None:
    standing.stand()
    follow(standing, page)


def test_every_exception_names_a_block_once() -> None:
    keys = [block.key for block in all_blocks()]
    named = [*ELSEWHERE, *NOT_TRIED, *GIVEN]
    assert [key for key in named if key not in keys] == []
    assert len(named) == len(set(named))


def test_the_tests_elsewhere_exist() -> None:
    for name in ELSEWHERE.values():
        file, _, test = name.partition("::")
        assert test in {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("block", [block for block in all_blocks() if block.language == "shell"], ids=lambda it: f"{it.page}:{it.line}")
def test_shell_is_shell(block: Block) -> None:
    subprocess.run(["bash", "-n", "-c", block.text], check=True, timeout=60)
