"""Fixtures and rules for all tests.

* A test that uses a real Kafka broker is marked `kafka` by its fixtures, one that uses a browser `browser`; `--fast`
  leaves those out, and says so.
* A test that leaves a process behind fails, and so does a session: see `no_process_left_by_test` and
  `no_process_left_by_session`.
* The Kafka clusters of a session are shared.  A test makes topics with names of its own, and one that hurts a cluster
  calls its `heal` before it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psutil
import pytest

from bruce_mp.kernels import CHOICE
from support import processes
from support.browser import Browser
from support.examples import register_profiles
from support.kafka_cluster import KafkaCluster
from support.kafka_dist import NEWEST, TESTED
from support.variants import pure_kernels, variant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["pure_kernels", "variant"]

MARKED: Final = {"kafka": frozenset({"kafka_3", "kafka_versions"}), "browser": frozenset({"browser"})}
"""Fixtures whose tests have a mark, and are left out by `--fast`."""
LEFT_OUT: Final = pytest.StashKey[dict[str, int]]()


register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what needs a Kafka broker or a browser")


def pytest_configure() -> None:
    processes.become_subreaper()


@pytest.hookimpl(tryfirst=True)  # before pytest's own hook looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark, fixtures in MARKED.items():
            if fixtures.intersection(getattr(item, "fixturenames", ())):
                item.add_marker(mark)
    if config.getoption("--fast"):
        _leave_out(config, items)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    by_mark = {mark: [item for item in items if item.get_closest_marker(mark)] for mark in MARKED}
    config.stash[LEFT_OUT] = {mark: len(some) for mark, some in by_mark.items()}
    left_out = [item for some in by_mark.values() for item in some]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not CHOICE.compiled:
        terminalreporter.line(f"The compiled kernels were not tested. What was: {CHOICE.sentence}.", red=True)
    if config.getoption("--fast"):
        counts = config.stash.get(LEFT_OUT, dict.fromkeys(MARKED, 0))
        terminalreporter.section("NOT EVERYTHING WAS TESTED", red=True, bold=True)
        what = f"{counts['kafka']} tests that need a real Kafka broker and {counts['browser']} that need a browser"
        terminalreporter.line(f"--fast left out {what}.", red=True)


# --- processes -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session", autouse=True)
def no_process_left_by_session() -> Iterator[None]:
    yield
    _fail_if_left(processes.descendants(), "The session")


@pytest.fixture(autouse=True)
def no_process_left_by_test() -> Iterator[None]:
    before = frozenset(psutil.Process().children(recursive=True))
    yield
    after = processes.descendants() - before
    processes.reap_orphans(before)
    _fail_if_left([process for process in after if not processes.may_stay(process)], "The test")


def _fail_if_left(found: Iterable[psutil.Process], who: str) -> None:
    if left := processes.still_alive(found):
        report = processes.describe(left)
        processes.kill(left)
        pytest.fail(f"{who} left processes behind:\n{report}")


# --- browser ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One window of Chromium."""
    with Browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


# --- Kafka -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def kafka_3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers of the newest version."""
    with KafkaCluster(NEWEST, brokers=3, directory=tmp_path_factory.mktemp("kafka-3")) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=TESTED)
def kafka_versions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker of each version in turn."""
    with KafkaCluster(request.param, directory=tmp_path_factory.mktemp(f"kafka-{request.param}")) as cluster:
        yield cluster
