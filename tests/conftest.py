"""Fixtures and rules for all tests.

* A test that uses a real Kafka broker is marked `kafka` by its fixtures, one that uses a browser `browser`; `--fast`
  leaves those out, and says so.
* A test that starts a process is marked `process`, or else it fails; `--unit` leaves those out, and says so.
* A test that tries every place of a death, or many histories, for longer than most is marked `exhaustive`; `--unit`
  leaves those out, too.
* A test that compares times or CPU with those of other processes, or needs most of the machine, is marked `quiet`;
  `scripts/test` runs it alone, after the parallel tests.
* A test that takes long, and covers more of a behaviour than a shorter one, is marked `soak`; only `--soak` runs it.
* A test that needs a language beyond C, Go and Java is marked `clients`; only `--clients` runs it.
* A test that leaves a process behind fails, and so does a session: see `no_process_left_by_test` and
  `no_process_left_by_session`.
* The Kafka clusters of a session are shared, and use CPU even without work.  So `scripts/test` runs the tests with
  three brokers, which are marked `cluster` too, in one session, and the others with Kafka in another.  A test makes
  topics with unique names, and a cluster that it hurts is healed after it.
"""

from __future__ import annotations

import gc
import re
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.devbroker import control
from bruce_mp.kernels import CHOICE
from support import processes
from support.browser import Browser
from support.examples import register_profiles
from support.fork_server import FORK_SERVER, start_broker
from support.hang_watch import HangWatch
from support.kafka_cluster import KafkaCluster
from support.kafka_dist import ALWAYS, NEWEST, TESTED
from support.kafka_secure import SecureKafka
from support.parts import files_of_part
from support.process_guard import ProcessGuard
from support.slabs import new_slab
from support.variants import pure_kernels, variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import psutil

    from bruce_mp.slab.file import Slab

__all__ = ["pure_kernels", "variant"]

MARKED: Final = {
    "cluster": frozenset({"kafka_3"}),
    "kafka": frozenset({"kafka_3", "kafka_versions", "secure_kafka"}),
    "browser": frozenset({"browser"}),
}
"""Fixtures that mark their tests."""
START_PROCESSES: Final = ("kafka", "browser", "spark")
"""Marks of tests that start a process, too."""
LEAVES_OUT: Final = {"fast": ("kafka", "browser"), "unit": ("process", "exhaustive")}
"""By option: the marks of the tests that it leaves out."""
LEFT_OUT_SENTENCES: Final = {
    "kafka": "tests that need a real Kafka broker",
    "browser": "tests that need a browser",
    "process": "tests that start a process",
    "file": "files whose tests all start a process",
    "exhaustive": "tests that try every place of a death or many histories",
    "soak": "tests that take long, which scripts/test --soak runs",
    "clients": "tests that need a further language, which scripts/test --clients runs",
    "short": "tests that scripts/test runs",
}
WORDS: Final = {
    "cluster": "kafka_3",
    "kafka": r"mark\.kafka|kafka_3|kafka_of|kafka_versions|secure_kafka",
    "browser": r"\bbrowser\b",
    "spark": r"\bspark\b",
    "process": r"mark\.process",
    "quiet": r"mark\.quiet",
}
"""By mark: a pattern that each file has of which a test has the mark."""
STARTS_ONLY_PROCESSES: Final = re.compile(
    r"^pytestmark = \[?\s*pytest\.mark\.(process|kafka|browser|spark)\b", re.MULTILINE
)
"""A pattern of files whose tests all start a process."""
MOST_MODULES_NAMED: Final = 10
SINGLE: Final = {
    "num.partitions": "3",
    # so that tests need not wait for deletions
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "producer.id.expiration.check.interval.ms": "100",
}
"""Settings of the single brokers of a session."""
LEFT_OUT: Final = pytest.StashKey[dict[str, tuple[int, list[str]]]]()
LEFT_OUT_FILES: Final = pytest.StashKey[set[str]]()
GUARD: Final = ProcessGuard()
HANG_WATCH: Final = HangWatch()

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what needs a Kafka broker or a browser")
    parser.addoption("--unit", action="store_true", help="leave out what starts a process, and what is exhaustive")
    parser.addoption("--soak", action="store_true", help="run the long tests only")
    parser.addoption("--clients", action="store_true", help="run the client libraries of all languages")
    parser.addoption("--only", choices=WORDS, help="skip files without this mark: a collection of all takes seconds")
    parser.addoption("--part", help="the number of a part of the files, and that of all parts: 2/3")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT_FILES] = set()
    processes.become_subreaper()
    FORK_SERVER.enable()
    setattr(control, "start_process", start_broker)  # noqa: B010 - mypy refuses to assign to a function
    HANG_WATCH.start()


def pytest_unconfigure() -> None:
    FORK_SERVER.stop()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without tests to run: to import all files takes seconds in each worker."""
    if collection_path.suffix != ".py":
        return None
    if (part := config.getoption("--part")) is not None and collection_path not in files_of_part(part):
        return True
    text = _text_of(collection_path)
    if (mark := config.getoption("--only")) is not None and not re.search(WORDS[mark], text):
        return True
    has_no_processes = config.getoption("--unit") or config.getoption("markexpr") == "not process"
    if has_no_processes and STARTS_ONLY_PROCESSES.search(text):
        config.stash[LEFT_OUT_FILES].add(str(collection_path.relative_to(config.rootpath)))
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest's own hook looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: dict[str, list[pytest.Item]] = {}
    kept: list[pytest.Item] = []
    marks_left_out = [mark for option, marks in LEAVES_OUT.items() if config.getoption(option) for mark in marks]
    for item in items:
        reason = _reason_to_leave_out(config, _marks_of(item), marks_left_out)
        (kept if reason is None else left_out.setdefault(reason, [])).append(item)
    config.stash[LEFT_OUT] = {reason: (len(some), _modules(some)) for reason, some in left_out.items()}
    if files := config.stash[LEFT_OUT_FILES]:
        config.stash[LEFT_OUT]["file"] = (len(files), sorted(files))
    config.hook.pytest_deselected(items=[item for some in left_out.values() for item in some])
    items[:] = kept


def _marks_of(item: pytest.Item) -> set[str]:
    """Add the marks that follow from fixtures and from other marks, and return the names of all."""
    marks = {mark.name for mark in item.iter_markers()}
    added = {mark for mark, fixtures in MARKED.items() if fixtures.intersection(getattr(item, "fixturenames", ()))}
    for mark in (marks | added) & WORDS.keys():
        if not re.search(WORDS[mark], _text_of(item.path)):
            raise pytest.UsageError(f"{item.path}: scripts/test looks for {WORDS[mark]} in files with the mark {mark}")
    if (marks | added).intersection(START_PROCESSES):
        added.add("process")
    for mark in added - marks:
        item.add_marker(mark)
    return marks | added


@cache
def _text_of(path: Path) -> str:
    return path.read_text()


def _reason_to_leave_out(config: pytest.Config, marks: set[str], marks_left_out: Iterable[str]) -> str | None:
    """Return the key of the sentence in LEFT_OUT_SENTENCES that says why the options leave a test with marks out."""
    if ("soak" in marks) != config.getoption("--soak"):
        return "soak" if "soak" in marks else "short"
    if "clients" in marks and not config.getoption("--clients"):
        return "clients"
    return next((mark for mark in marks_left_out if mark in marks), None)


def _modules(items: Iterable[pytest.Item]) -> list[str]:
    return sorted({item.nodeid.partition("::")[0] for item in items})


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # each full collection in a test would else visit all modules and collected tests
    GUARD.pop_started()  # conditions of `skipif` may run a command, which belongs to no test


def pytest_runtest_logstart() -> None:
    HANG_WATCH.rearm_if_due()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist: its controller collects no tests
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not CHOICE.compiled:
        terminalreporter.line(f"The compiled kernels were not tested. What was: {CHOICE.sentence}.", red=True)
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"SECOND TRY: {report.nodeid}", red=True, bold=True)
        terminalreporter.line(report.longreprtext)
    if counts := config.stash.get(LEFT_OUT, {}):
        terminalreporter.section("NOT EVERYTHING WAS TESTED", red=True, bold=True)
        for reason, (count, modules) in counts.items():
            where = f" ({', '.join(modules)})" if len(modules) <= MOST_MODULES_NAMED else ""
            terminalreporter.line(f"Left out: {count} {LEFT_OUT_SENTENCES[reason]}{where}.", red=True)


# --- processes -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session", autouse=True)
def no_process_left_by_session() -> Iterator[None]:
    yield
    _fail_if_left(processes.descendants(), "The session")


@pytest.fixture(autouse=True)
def no_process_left_by_test(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.node.get_closest_marker("process"):
        yield  # the test starts no process, see `pytest_runtest_teardown`; the checks cost most of a short test's time
        return
    before = frozenset(processes.family())
    yield
    after = processes.descendants() - before
    processes.reap_orphans(before)
    _fail_if_left([process for process in after if not processes.may_stay(process)], "The test")


def _fail_if_left(found: Iterable[psutil.Process], who: str) -> None:
    if left := processes.still_alive(found):
        report = processes.describe(left)
        processes.kill(left)
        pytest.fail(f"{who} left processes behind:\n{report}")


@pytest.fixture
def unforked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each daemon and embedded broker as a user does, for tests of a start or of loaded modules."""
    monkeypatch.setattr(FORK_SERVER, "is_enabled", False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        yield
    finally:
        started = GUARD.pop_started()
    if started and not item.get_closest_marker("process"):
        pytest.fail(f"The test starts a process: mark it with pytest.mark.process. It started {started[0]}")


@pytest.fixture
def slab() -> Iterator[Slab]:
    """Create an empty slab."""
    with new_slab() as made:
        yield made


# --- browser ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Yield one window of Chromium."""
    with Browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


# --- Kafka -----------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def heals_clusters() -> Iterator[None]:
    """Heal the clusters that a test hurt, also for its second try."""
    yield
    KafkaCluster.heal_all()


@pytest.fixture(scope="session")
def kafka_3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Yield three brokers of the newest version."""
    with KafkaCluster(NEWEST, brokers=3, directory=tmp_path_factory.mktemp("kafka-3")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], KafkaCluster]]:
    """Yield a function that returns the session's single broker of a version."""
    with ExitStack() as stack:

        @cache
        def started(version: str) -> KafkaCluster:
            directory = tmp_path_factory.mktemp(f"kafka-{version}")
            return stack.enter_context(KafkaCluster(version, config=SINGLE, directory=directory))

        yield started


@pytest.fixture(
    scope="session",
    params=[pytest.param(version, marks=() if version in ALWAYS else pytest.mark.soak) for version in TESTED],
)
def kafka_versions(request: pytest.FixtureRequest, kafka_of: Callable[[str], KafkaCluster]) -> KafkaCluster:
    """Return one broker of each version in turn."""
    return kafka_of(request.param)


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """Yield a broker of the newest version that authenticates its clients."""
    with SecureKafka(tmp_path_factory.mktemp("secure"), NEWEST) as cluster:
        cluster.create_users()
        yield cluster
