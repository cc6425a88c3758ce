"""The comparison of traffic finds each kind of difference."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.telemetry.books import Books
from support.chaos import AT_LEAST_ONCE, EXACTLY_ONCE, MAX_QUEUED, NO_GUARANTEES, Outcome, check
from support.power_cuts import PowerCut
from support.traffic import Load, Name, Seen, compare, messages_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.chaos import Guarantees
    from support.traffic import Account

LOAD: Final = Load(("red", "green"), senders=2, messages=1 << 40, largest=100)
SENT: Final = {0: 30, 1: 20}
KEYS: Final = {
    message.value: message.partition_key for sender in SENT for message in islice(messages_of(LOAD, sender), 30)
}


def arrived() -> dict[str, list[Seen]]:
    """Everything as it should be: one partition, one sender after the other."""
    records: dict[str, list[Seen]] = {"red": [], "green": []}
    for sender, count in SENT.items():
        for _, message in zip(range(count), messages_of(LOAD, sender), strict=False):
            records[message.topic].append(Seen(0, message.key or None, message.value, message.timestamp_ms))
    return records


def test_complete_records_are_accounted_for() -> None:
    account = compare(LOAD, SENT, arrived(), {})
    assert (account.read, account.missing, account.repeated.total()) == (50, {}, 0)


def test_missing_messages_are_named() -> None:
    records = arrived()
    gone = records["red"].pop(3)
    account = compare(LOAD, SENT, records, {})
    assert gone.value is not None
    sender, number = map(int, gone.value.split(b":")[:2])
    assert account.missing == {Name(sender, number): "red"}
    assert account.missing_by_topic == {"red": 1}
    assert account.first_missing(sender, SENT[sender]) == number
    assert account.first_missing(1 - sender, SENT[1 - sender]) == SENT[1 - sender]


def test_repeated_messages_are_counted_by_topic() -> None:
    records = arrived()
    records["red"] += records["red"][2:5]
    account = compare(LOAD, SENT, records, {})
    assert account.repeated == {"red": 3}
    assert account.read == 50


def test_messages_of_different_homes_may_be_reordered_in_a_grown_topic() -> None:
    """The two may have had different homes when they were received."""
    records = arrived()
    records["red"].sort(key=lambda seen: ((KEYS[seen.value or b""] or 0) & 0xFFFFFFFF) % 6)
    assert compare(LOAD, SENT, records, {"red": (2, 3)}).read == 50
    with pytest.raises(AssertionError, match="came after"):
        compare(LOAD, SENT, records, {"red": (3,)})


def test_messages_of_different_homes_may_be_reordered_on_stand_in_partitions() -> None:
    """With three partitions, records sorted by their home are in order; with one they are not."""
    records = arrived()

    def home(seen: Seen) -> int:
        key = KEYS[seen.value or b""]
        return -1 if key is None else (key & 0xFFFFFFFF) % 3

    records["red"].sort(key=home)
    assert compare(LOAD, SENT, records, {"red": (3,)}).read == 50
    with pytest.raises(AssertionError, match="came after"):
        compare(LOAD, SENT, records, {"red": (2,), "green": (3,)})
    with pytest.raises(AssertionError, match="came after"):
        compare(LOAD, SENT, records, {})


@pytest.mark.parametrize(
    "change",
    [{"key": b"other"}, {"timestamp_ms": 7}, {"value": b"0:0:other"}],
    ids=["key", "timestamp", "value"],
)
def test_a_changed_message_fails_the_comparison(change: dict[str, Any]) -> None:
    records = arrived()
    first = next(seen for some in records.values() for seen in some if (seen.value or b"").startswith(b"0:0:"))
    for some in records.values():
        some[:] = [seen._replace(**change) if seen is first else seen for seen in some]
    with pytest.raises(AssertionError, match="is not what was sent"):
        compare(LOAD, SENT, records, {})


def test_a_message_in_another_topic_fails_the_comparison() -> None:
    records = arrived()
    records["green"].insert(0, records["red"].pop(0))
    with pytest.raises(AssertionError, match="is not what was sent"):
        compare(LOAD, SENT, records, {})


def test_an_unsent_message_fails_the_comparison() -> None:
    records = arrived()
    records["red"].append(Seen(0, None, b"1:20:", 0))
    with pytest.raises(KeyError):
        compare(LOAD, SENT, records, {})


# --- the guarantees ---------------------------------------------------------------------------------------------------


def account_of(*, lost: int = 0, repeated: int = 0, times: int = 1) -> Account:
    """Return an account with the first messages of sender 0 lost in one topic and repeated in the other."""
    records = arrived()
    del records["red"][:lost]
    records["green"] += records["green"][:repeated] * times
    return compare(LOAD, SENT, records, {})


def cut_of(numbers: Iterable[int]) -> PowerCut:
    """Return a power cut just after these messages of sender 0, which restored them."""
    books = Books(50, 50, {}, {}, 0, consistent=True)
    names = [Name(0, number) for number in numbers]
    first, last = (names[0].number, names[-1].number + 1) if names else (0, 0)
    return PowerCut("lose", books, Counter(names), {0: (first, last), 1: (0, 0)})


def test_unordered_messages_may_pass_others() -> None:
    records = arrived()
    late = records["red"].pop(0)
    records["red"].append(late)
    with pytest.raises(AssertionError, match="came after"):
        compare(LOAD, SENT, records, {})
    assert compare(LOAD, SENT, records, {}, unordered={Name.of(late.value)}.__contains__).read == 50


@pytest.mark.parametrize(
    ("guarantees", "outcome", "account"),
    [
        (EXACTLY_ONCE, Outcome(received=50), account_of()),
        (EXACTLY_ONCE, Outcome(received=48, sockets_lost=1), account_of(lost=2)),
        (AT_LEAST_ONCE, Outcome(received=50, possible_duplicates=2), account_of(repeated=2)),
        (NO_GUARANTEES, Outcome(received=50), account_of(lost=2)),
        (EXACTLY_ONCE, Outcome(received=55, discarded=Counter(NO_MEM=1, UNCLEAN_DISCONNECT=5)), account_of(lost=1)),
        (EXACTLY_ONCE, Outcome(received=50, discarded=Counter(POSSIBLY_DELIVERED=2)), account_of(lost=1)),
        (EXACTLY_ONCE, Outcome(received=50, in_doubt={0: [(0, 30)]}), account_of(lost=1)),
        (EXACTLY_ONCE, Outcome(received=50, cuts=[cut_of(range(30))]), account_of(lost=1, repeated=1)),
    ],
)
def test_check_accepts_outcomes_within_the_guarantees(
    guarantees: Guarantees, outcome: Outcome, account: Account
) -> None:
    check(guarantees, outcome, account)


@pytest.mark.parametrize(
    ("guarantees", "outcome", "account", "words"),
    [
        (EXACTLY_ONCE, Outcome(received=50), account_of(lost=1), "1 are missing"),
        (EXACTLY_ONCE, Outcome(received=50, sockets_lost=1), account_of(lost=1), "50 received, 49 read"),
        (EXACTLY_ONCE, Outcome(received=50, possible_duplicates=2), account_of(repeated=1), "were repeated"),
        (AT_LEAST_ONCE, Outcome(received=50, possible_duplicates=2), account_of(repeated=3), "were repeated"),
        (AT_LEAST_ONCE, Outcome(received=50), account_of(lost=1), "1 are missing"),
        (NO_GUARANTEES, Outcome(received=40), account_of(), "50 read of 40 received"),
        (EXACTLY_ONCE, Outcome(received=55, discarded=Counter(UNCLEAN_DISCONNECT=5)), account_of(lost=1), "missing"),
        (EXACTLY_ONCE, Outcome(received=51, discarded=Counter(NO_MEM=2)), account_of(), "50 read of 51 received"),
        (EXACTLY_ONCE, Outcome(received=54, discarded=Counter(POSSIBLY_DELIVERED=2)), account_of(), "54 received"),
        (EXACTLY_ONCE, Outcome(received=50, discarded_names={Name(0, 0)}), account_of(), "discarded, but in Kafka"),
        (EXACTLY_ONCE, Outcome(received=50, in_doubt={0: [(29, 30)]}), account_of(lost=1), "1 are missing"),
        (EXACTLY_ONCE, Outcome(received=50, cuts=[cut_of(range(29, 30))]), account_of(lost=1), "1 are missing"),
        (EXACTLY_ONCE, Outcome(received=50, cuts=[cut_of(())]), account_of(repeated=1), "were repeated"),
        (
            EXACTLY_ONCE,
            Outcome(received=50, cuts=[cut_of(range(30))]),
            account_of(repeated=1, times=2),
            "were repeated",
        ),
    ],
)
def test_check_rejects_outcomes_beyond_the_guarantees(
    guarantees: Guarantees, outcome: Outcome, account: Account, words: str
) -> None:
    assert len(account.missing) < MAX_QUEUED
    with pytest.raises(AssertionError, match=words):
        check(guarantees, outcome, account)
