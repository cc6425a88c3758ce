"""Every fenced block of the documentation is tried as a reader would, or says here why not.

A new block is tried without further ado: configurations are loaded, commands and Python are run against a broker and a
daemon, and text is what the command before it answers.  What a block takes for granted goes into `GIVEN`.  A block that
cannot be tried here has an entry in `ELSEWHERE`, with the test that tries it, or in `NOT_TRIED`, with the reason.
"""

from __future__ import annotations

import ast
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from support.doc_pages import PAGES, ROOT, Block, all_blocks, blocks_of, name_of
from support.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Key = tuple[str, str]

DEMO: Final = "tests/test_demo.py::test_the_demo_completes_and_leaves_nothing"
WITH_SPARK: Final = "tests/spark/test_document.py::test_the_documented_python_writes"
ELSEWHERE: Final[dict[Key, str]] = {
    ("README.md", "scripts/demo"): DEMO,
    ("README.md", "received 5314 = delivered 5314 + discard"): DEMO,
    ("README.md", 'df.selectExpr("to_json(struct(*)) as val'): WITH_SPARK,
    ("docs/spark.md", "from pyspark.sql import SparkSession"): WITH_SPARK,
    (
        "docs/spark.md",
        'lines = spark.readStream.text("/data/cli',
    ): "tests/spark/test_document.py::test_the_documented_stream_writes",
    ("docs/spark.md", "import bruce_mp.spark"): WITH_SPARK,
    ("docs/operating.md", "sed -e 's/^\\[program:bruce/&-east/' -e '"): (
        "tests/deploy/test_files.py::test_the_documented_command_adapts_the_programs_of_supervisord_to_a_cluster"
    ),
    ("docs/status.md", "def topic_bytes(text: str) -> bytes:"): (
        "tests/status/pages/test_text.py::test_the_documented_inverse_of_topic_text_works"
    ),
}
INSTALLS: Final = "fetches libraries; scripts/demo and scripts/test install in the same way"
NOT_TRIED: Final[dict[Key, str]] = {
    ("README.md", "/usr/bin/python3 -m venv /opt/bruce"): INSTALLS,
    ("README.md", "scripts/test"): "is what runs this",
    ("docs/getting-started.md", "python3 -m venv ~/bruce-venv"): INSTALLS,
    ("docs/spark.md", "$ python3 -m venv ~/spark-venv"): INSTALLS,
    ("docs/getting-started.md", "useradd --system --shell /usr/sbin/nolog"): "makes a user of this host",
    ("docs/operating.md", "systemctl stop bruce"): "needs systemd; tests/e2e/test_upgrade.py stops and starts a daemon",
    ("docs/operating.md", "helm install bruce deploy/kubernetes/bru"): "needs a cluster; tests/deploy/test_files.py",
    ("docs/slab.md", "now: MS ts: MS event: DISC info: SLAB to"): "a layout: test_slab.py",
    ("docs/testing.md", "scripts/test                 # style, ty"): "is what runs this",
    ("docs/testing.md", ".venv/bin/python -m pytest -m hypothesis"): "takes minutes",
    ("docs/testing.md", "export PYTHONPATH=tests"): "takes half an hour; tests/chaos/test_chaos.py runs it for seconds",
    ("docs/testing.md", ".venv/bin/python -m chaos.outage --minut"): "takes an hour; tests/chaos/test_outage.py",
    ("docs/testing.md", ".venv/bin/python -m chaos.spark --minute"): "takes half an hour; tests/chaos/test_spark.py",
    ("docs/status.md", "ts: TS topic: LEN[T] key: LEN[B64] value"): "a layout: test_debug_files.py",
}
DRAWN: Final = {"mermaid"}
"""Languages of blocks that are made from the code: test_states.py."""

BROKERS: Final = '<initialBrokers><broker host="kafka-1" port="9092"/></initialBrokers>'
INPUT: Final = '<inputSources><unixDatagram enable="true"><path value="/var/run/in"/></unixDatagram></inputSources>'
GIVEN: Final[dict[Key, str]] = {
    ("README.md", "bruce check-config /etc/bruce/bruce.toml"): "bruce dev-broker --port 19092 --topic clicks:3",
    ("docs/getting-started.md", "bruce dev-broker --port 19092 --topic cl"): "mkdir -p /tmp/bruce-try",
    ("docs/dev-broker.md", "bruce dev-broker --brokers 3 --topic ord"): "mkdir -p /tmp/bruce-try",
    ("docs/clients/README.md", "bruce send --socket-path /run/bruce/in.d"): (
        "printf 'one\\ntwo\\n' > access.log; printf picture > picture.png"
    ),
    ("docs/clients/README.md", "from bruce_mp.client import DatagramClie"): "rows = [b'one', b'two']",
    ("docs/migrating.md", "bruce import-config /etc/dory/dory_conf."): (
        f"echo '<doryConfig>{BROKERS}{INPUT}</doryConfig>' > /etc/dory/dory_conf.xml"
    ),
    ("docs/migrating.md", 'bruce import-config --command-line "bruc'): (
        f"echo '<bruceConfig>{BROKERS}</bruceConfig>' > /etc/bruce/bruce_conf.xml"
    ),
    ("docs/slab.md", "bruce replay /var/log/bruce/discard.log*"): (
        "printf 'now: 1 ts: 2 event: DISC info: NO_MEM topic: 6[clicks] key: 0[] msg: 8[dmFsdWU=]\\n' "
        "> /var/log/bruce/discard.log"
    ),
    ("docs/slab.md", "$ bruce slab inspect /dev/shm/bruce-run-"): (
        "cp /dev/shm/bruce-run-bruce.slab /dev/shm/bruce-run-bruce.slab.damaged-1800000000000"
    ),
    ("docs/spark.md", "$ cat >> bruce.toml <<END"): """bruce dev-broker --port 19092
cat > bruce.toml <<END
[kafka]
bootstrap_servers = ["localhost:9092"]
[input.unix_datagram]
path = "/run/bruce/in.dgram"
[daemon]
run_dir = "/run/bruce/private"
END""",
}
"""A page's unstated preparation for a block, in the language of the block, run before it."""
OWN_DAEMON: Final = {"README.md", "docs/getting-started.md", "docs/spark.md"}
"""Pages that start a daemon themselves."""
DISCARDED: Final = {"docs/getting-started.md": {"BAD_TOPIC": 1}}
"""The messages that a page makes the daemon discard on purpose."""


def is_tried(block: Block) -> bool:
    return block.language not in DRAWN and block.key not in ELSEWHERE.keys() | NOT_TRIED.keys()


def pages(languages: set[str], *, own_daemon: bool) -> list[Path]:
    """Return the pages that start a daemon, or do not, and have a block in one of the languages."""
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
    standing.start_default_daemon()
    follow(standing, page)


def test_every_exception_names_a_block_once() -> None:
    keys = [block.key for block in all_blocks()]
    named = [*ELSEWHERE, *NOT_TRIED, *GIVEN]
    assert [key for key in named if key not in keys] == []
    assert len(named) == len(set(named))


def test_the_tests_named_for_untried_blocks_exist() -> None:
    for name in ELSEWHERE.values():
        file, _, test = name.partition("::")
        functions = [node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
        assert test in {function.name for function in functions}


@pytest.mark.process
def test_shell_blocks_have_valid_syntax() -> None:
    for block in all_blocks():
        if block.language == "shell":
            command = ["bash", "-n", "-c", block.text]
            checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (checked.returncode, checked.stderr) == (0, ""), block
