"""How a conversation with a broker is opened, as data: which questions come first, and what to try if that fails.

A broker since 0.10 says which versions it speaks.  An older one has no word for that: 0.8 closes the connection, 0.9
says nothing ever.  But so does a newer one that is just going down or not yet up, and to take that for an old one would
cost exactly-once delivery, or all delivery.  So there are three openings, each the `fallback` of the one before:

    ASK          for versions
    LOOK_AGAIN   for metadata, which every Kafka gives in version 0, and behind that for versions: a broker that answers
                 the first and still not the second is an old one
    assume(...)  for metadata, so that it is seen to speak what is assumed

Where there is a login only the first is left, ASK_ONLY: nothing else may be asked before it, and there is no login with
a broker before 0.10.

A connection goes through one opening.  When it fails with Cause.NO_API_VERSIONS its owner makes another connection with
the fallback.  Where the configuration names an old release, `opening_for` begins with the last.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import Final

from msgspec import Struct

from bruce_mp.protocol.api_versions import BEFORE_API_VERSIONS, BrokerAbilities

__all__ = ["ASK", "ASK_ONLY", "LOOK_AGAIN", "VERSIONS_TIMEOUT_S", "Opening", "Question", "assume", "opening_for"]

VERSIONS_TIMEOUT_S: Final = 2.0
"""How long versions are waited for.  A broker answers that without looking at anything; each first contact with a
Kafka 0.9 waits for so long, twice."""
FIRST_RELEASE_TO_ASK: Final = (0, 10)


@unique
class Question(Enum):
    """What an opening may ask."""

    VERSIONS = "which versions it speaks"
    METADATA = "for metadata"


class Opening(Struct, frozen=True):
    """`questions` in order.  `assumed` stands for what was agreed on, where the last question is not for versions."""

    questions: tuple[Question, ...]
    assumed: BrokerAbilities | None = None
    fallback: Opening | None = None


def assume(abilities: BrokerAbilities) -> Opening:
    """The opening for a broker that cannot be asked."""
    return Opening((Question.METADATA,), assumed=abilities)


LOOK_AGAIN: Final = Opening((Question.METADATA, Question.VERSIONS), fallback=assume(BEFORE_API_VERSIONS))
ASK: Final = Opening((Question.VERSIONS,), fallback=LOOK_AGAIN)
ASK_ONLY: Final = Opening((Question.VERSIONS,))


def opening_for(release: str | None, *, logs_in: bool = False) -> Opening:
    """The first opening for brokers of a release such as "0.9.0.1"; None: it is not known."""
    if logs_in:
        return ASK_ONLY
    if release is not None and tuple(map(int, release.split("."))) < FIRST_RELEASE_TO_ASK:
        return assume(BEFORE_API_VERSIONS)
    return ASK
