"""Allow lists and quotas, with other users if the tests run as root.

Without root, the only sender is the tests' user, which one daemon admits and the next refuses.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.protocol.client.barrier import BarrierStatus, Level, decode_answer, encode_barrier
from bruce_mp.protocol.client.discard_line import parse_line
from bruce_mp.protocol.client.messages import encode
from support.as_user import ONESELF, STRANGERS, Account, UserProcess, send_as
from support.daemon import Daemon
from support.read_back import broker_fixture, values_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

SENDERS: Final = STRANGERS or (ONESELF,)
NOBODY: Final = 39_999
"""A uid that no test sends with."""
DAY_MS: Final = 86_400_000
COUNT: Final = 40
KINDS: Final = ("datagram", "stream")
BARRIER: Final = encode_barrier(b"barrier!", Level.DELIVERED, 60_000)
broker = broker_fixture(topics={"t": 1})


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a directory for sockets that every user can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="bruce-senders-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


def daemon_in(directory: Path, place: Path, broker: DevBroker, **more: object) -> Daemon:
    settings: dict[str, object] = {"input.unix_stream.enable": "true", "input.streams.workers": 2}
    for section, kind in (("unix_datagram", "datagram"), ("unix_stream", "stream")):
        settings |= {f"input.{section}.path": place / kind, f"input.{section}.mode": "0222"}
    settings |= {"discard_log.enable": "true", "discard_log.path": directory / "discards"}
    return Daemon(directory, broker.bootstrap, settings | more)


def allowing(kind: str, **lists: list[int]) -> dict[str, object]:
    return {f"input.unix_{kind}.allow_{name}": str(numbers) for name, numbers in lists.items()}


def messages_of(account: Account, count: int = COUNT) -> list[bytes]:
    return [encode("t", value, timestamp_ms=1) for value in values_of(account, count)]


def values_of(account: Account, count: int = COUNT) -> list[bytes]:
    return [b"%d:%d" % (account.uid, number) for number in range(count)]


def line_of(daemon: Daemon, account: Account) -> dict[str, Any]:
    """Return the entry of a user on `/senders`."""
    lines = daemon.get("/senders/json")["senders"]
    return next((line for line in lines if line["uid"] == account.uid), {})


def send(daemon: Daemon, place: Path, kind: str, account: Account, count: int = COUNT) -> bool:
    """Send messages, over a stream with a barrier behind; return True if the sender saw no refusal."""
    if kind == "datagram":
        send_as(account, kind, place / kind, messages_of(account, count))
        return True
    answer = send_as(account, kind, place / kind, [*messages_of(account, count), BARRIER])
    if not answer:
        assert "was refused" in daemon.log()
        return False
    decoded = decode_answer(answer)
    assert (decoded.status, decoded.delivered) == (BarrierStatus.DONE, count)
    return True


# --- allow lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_let_in", [True] if STRANGERS else [True, False])
def test_only_users_in_the_list_may_send(
    tmp_path: Path, place: Path, broker: DevBroker, kind: str, is_let_in: bool
) -> None:
    first, *others = SENDERS
    lists = allowing(kind, users=[first.uid if is_let_in else NOBODY])
    with daemon_in(tmp_path, place, broker, **lists) as daemon:
        let_in = [send(daemon, place, kind, each) for each in SENDERS]
        refused = others if is_let_in else [first, *others]
        delivered = COUNT if is_let_in else 0
        if kind == "stream":
            assert let_in == [is_let_in, *[False] * len(others)]
            books = daemon.wait_settled(delivered)
            assert (books.received, books.discarded) == (delivered, {})
            assert [line_of(daemon, each)["refused_connections"] for each in refused] == [1] * len(refused)
        else:
            books = daemon.wait_settled(COUNT * len(SENDERS))
            lost = COUNT * len(refused)
            assert (books.delivered, books.discarded) == (delivered, {"SENDER_NOT_ALLOWED": lost} if lost else {})
            assert [line_of(daemon, each)["not_allowed"] for each in refused] == [COUNT] * len(refused)
            assert_told_of(daemon, refused)
        assert values_in(broker, "t") == (values_of(first) if is_let_in else [])
        phrases = [f"of user {each.uid} (process " for each in refused]
        daemon.wait_for(lambda: all(each in daemon.log() for each in phrases), "a word in the log", 10)
        assert (f"input.unix_{kind}.allow_users" in daemon.log()) == bool(refused)


def assert_told_of(daemon: Daemon, refused: list[Account]) -> None:
    """Check that the report and the discard file name the senders of refused messages."""

    def culprits() -> list[tuple[str, int]]:
        report = daemon.get("/discards/json")["unfinished_report"]
        return sorted((each["reason"], each["uid"]) for each in report["culprits"])

    wanted = sorted(("SENDER_NOT_ALLOWED", each.uid) for each in refused)
    daemon.wait_for(lambda: culprits() == wanted, f"the culprits {wanted}", 20)
    if refused:
        file, count = daemon.directory / "discards", COUNT * len(refused)
        daemon.wait_for(lambda: file.exists() and file.read_bytes().count(b"\n") == count, "the discard file", 20)
        lines = [parse_line(line) for line in file.read_bytes().splitlines()]
        assert {line.info for line in lines} == {"SENDER_NOT_ALLOWED"}
        assert [line.value for line in lines] == [data for each in refused for data in messages_of(each)]


def test_members_of_a_group_in_the_list_may_send(tmp_path: Path, place: Path, broker: DevBroker) -> None:
    """Only connections reveal the supplementary groups of a process."""
    first, *others = SENDERS
    lists = [allowing(kind, groups=[first.gid]) for kind in KINDS]
    with daemon_in(tmp_path, place, broker, **lists[0], **lists[1]) as daemon:
        with_group = [each._replace(groups=(first.gid,)) for each in others]
        for each in (first, *with_group):
            assert send(daemon, place, "stream", each)
            send(daemon, place, "datagram", each)
        daemon.wait_settled(2 * COUNT * len(SENDERS))
        let_in = [*values_of(first), *(value for each in SENDERS for value in values_of(each))]
        assert sorted(values_in(broker, "t"), key=str) == sorted(let_in, key=str)


def test_a_killed_input_admits_no_unlisted_sender(tmp_path: Path, place: Path, broker: DevBroker) -> None:
    """Messages of admitted senders are not lost or doubled; no message of the others passes."""
    first, *others = SENDERS
    count = 3000
    with daemon_in(tmp_path, place, broker, **allowing("datagram", users=[first.uid])) as daemon:
        senders = [UserProcess(each, "datagram", place / "datagram", messages_of(each, count)) for each in SENDERS]
        for part in range(1, 5):
            daemon.wait_received(part * count * len(SENDERS) // 6)
            daemon.kill("input")
        assert [sender.answer() for sender in senders] == [b""] * len(senders)
        books = daemon.wait_settled(count * len(SENDERS))
        lost = count * len(others)
        assert (books.delivered, books.discarded) == (count, {"SENDER_NOT_ALLOWED": lost} if lost else {})
        assert values_in(broker, "t") == values_of(first, count)


def test_an_unknown_user_name_is_reported_at_the_start(tmp_path: Path, place: Path, broker: DevBroker) -> None:
    lists = {"input.unix_stream.allow_users": '["nobody-has-this-name"]', "input.quota.users.nor-this": 5}
    daemon = daemon_in(tmp_path, place, broker, **lists)
    with pytest.raises(AssertionError, match="ended at once"):
        daemon.start()
    assert 'input.unix_stream.allow_users: there is no user "nobody-has-this-name" on this host' in daemon.log()
    assert 'input.quota.users: there is no user "nor-this"' in daemon.log()


# --- quotas -----------------------------------------------------------------------------------------------------------


def test_datagrams_beyond_the_quota_are_discarded(tmp_path: Path, place: Path, broker: DevBroker) -> None:
    first, *others = SENDERS
    quota = {"input.quota.interval_ms": DAY_MS, "input.quota.max_messages": COUNT, f"input.quota.users.{first.uid}": 10}
    with daemon_in(tmp_path, place, broker, **quota) as daemon:
        for each in SENDERS:
            send(daemon, place, "datagram", each)
        books = daemon.wait_settled(COUNT * len(SENDERS))
        assert books.discarded == {"OVER_QUOTA": COUNT - 10}
        expected = [*values_of(first)[:10], *(value for each in others for value in values_of(each))]
        assert values_in(broker, "t") == expected
        assert (line_of(daemon, first)["received"], line_of(daemon, first)["over_quota"]) == (COUNT, COUNT - 10)
        daemon.wait_for(lambda: len(over_quota(daemon)) == COUNT - 10, "copies: an input that dies has some", 20)
        daemon.kill("input")
        send(daemon, place, "datagram", first)
        books = daemon.wait_settled(COUNT * len(SENDERS) + COUNT)
        assert books.discarded == {"OVER_QUOTA": 2 * COUNT - 10}  # the quota outlives the process
        daemon.wait_for(lambda: len(over_quota(daemon)) == 2 * COUNT - 10, "the discard file", 20)
        assert over_quota(daemon) == values_of(first)[10:] + values_of(first)
        daemon.wait_for(lambda: f"of user {first.uid} than input.quota allows" in daemon.log(), "a word in the log", 10)
        (topic,) = daemon.get("/discards/json")["unfinished_report"]["discard_topic"]
        assert (topic["topic"], topic["reasons"]) == ("t", {"OVER_QUOTA": 2 * COUNT - 10})


def over_quota(daemon: Daemon) -> list[bytes]:
    """Return the values in the discard file; its last line may be half written."""
    file = daemon.directory / "discards"
    whole = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    lines = [parse_line(line) for line in whole]
    assert {(line.info, line.topic) for line in lines} <= {("OVER_QUOTA", b"t")}
    return [line.value for line in lines]


def test_connections_wait_for_the_next_interval(tmp_path: Path, place: Path, broker: DevBroker) -> None:
    """The quota covers all connections of a user in all processes; their messages are not discarded."""
    first = SENDERS[0]
    interval_ms, most, count = 400, 100, 250
    quota = {"input.quota.interval_ms": interval_ms, "input.quota.max_messages": most}
    with daemon_in(tmp_path, place, broker, **quota) as daemon:
        began = time.monotonic()
        messages = [*messages_of(first, count), BARRIER]
        senders = [UserProcess(first, "stream", place / "stream", messages) for _ in range(2)]
        answers = [decode_answer(sender.answer()) for sender in senders]
        assert [(each.status, each.delivered) for each in answers] == [(BarrierStatus.DONE, count)] * 2
        took_ms = (time.monotonic() - began) * 1000
        books = daemon.wait_settled(2 * count)
        assert (books.delivered, books.discarded) == (2 * count, {})
        assert sorted(values_in(broker, "t"), key=str) == sorted(2 * values_of(first, count), key=str)
        assert took_ms > (2 * count // (2 * most) - 1) * interval_ms  # both processes may take a whole quota at once
        assert line_of(daemon, first)["received"] == 2 * count
        assert line_of(daemon, first)["waited"] > 0
        daemon.wait_for(lambda: "connections are not read before the next interval" in daemon.log(), "a word", 10)


def test_reloaded_allow_lists_and_quotas_apply(tmp_path: Path, place: Path, broker: DevBroker) -> None:
    """Connections that wait for a removed quota continue; removed senders may not send any more."""
    first = SENDERS[0]
    quota = {"interval_ms": DAY_MS, "max_messages": 5}
    daemon = daemon_in(tmp_path, place, broker)
    configured = daemon.config_path.read_text()
    lines = [f"{key} = {value}" for key, value in quota.items()]
    daemon.config_path.write_text("\n".join([configured, "[input.quota]", *lines, ""]))
    with daemon:
        sender = UserProcess(first, "stream", place / "stream", [*messages_of(first), BARRIER])
        daemon.wait_settled(5)
        daemon.config_path.write_text(configured)
        os.kill(daemon.pid, signal.SIGHUP)
        assert decode_answer(sender.answer()).delivered == COUNT
        daemon.config_path.write_text(f"{configured}[input.unix_stream]\nallow_users = [{NOBODY}]\n")
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_for(lambda: daemon.log().count("NOTICE: Reloaded") == 2, "the reload", 20)
        assert not send(daemon, place, "stream", first)
        assert daemon.wait_settled(COUNT).received == COUNT


def test_shutdown_does_not_wait_for_a_quota(tmp_path: Path, place: Path, broker: DevBroker) -> None:
    first = SENDERS[0]
    quota = {"input.quota.interval_ms": DAY_MS, "input.quota.max_messages": 5}
    with (
        daemon_in(tmp_path, place, broker, **quota) as daemon,
        UserProcess(first, "stream", place / "stream", [*messages_of(first), BARRIER]) as sender,
    ):
        daemon.wait_settled(5)
        assert daemon.terminate() == 0
        assert sender.answer() == b""
        assert values_in(broker, "t") == values_of(first)[:5]
