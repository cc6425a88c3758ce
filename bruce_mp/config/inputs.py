"""The sections of the inputs, with access control and timestamps; `config/sections.py` explains the conventions."""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

import os
from typing import Annotated, Final, Literal

from msgspec import field

from bruce_mp.config import fields
from bruce_mp.config.fields import DAY_MS, INT32_MAX, LIVE, RESTART_FOR_SIZES, RESTART_TO_BIND, Section, restart
from bruce_mp.config.sizes import GIB, KIB, MIB

SMALLEST_MESSAGE: Final = 29
"""Size of the smallest message that a client can send, in bytes."""
MAX_WORKERS: Final = 27
"""Maximum number of stream workers. The slab has 29 process rows for them, the datagram input and the journal."""

TimestampPolicy = Literal["client", "arrival", "clamp"]
TimestampSetting = Annotated[
    TimestampPolicy | None, fields.plain("Timestamp policy of this input. Absent: `timestamps.policy`."), LIVE
]

ModeSetting = Annotated[
    int | None,
    fields.mode("Mode of the socket; senders need write permission. Absent: the umask decides."),
    RESTART_TO_BIND,
]
UserSetting = Annotated[
    str | None, fields.plain("Owner of the socket file, by name or number. Absent: the daemon's user."), RESTART_TO_BIND
]
GroupSetting = Annotated[
    str | None, fields.plain("Group of the socket file. Absent: as for any new file in its directory."), RESTART_TO_BIND
]
AllowUsersSetting = Annotated[
    tuple[str, ...],
    fields.accounts(
        "Users that may send, if the mode admits them. If this and `allow_groups` are empty, the mode alone decides."
    ),
    LIVE,
]
AllowGroupsSetting = Annotated[tuple[str, ...], fields.accounts("Groups that may send; see `docs/security.md`."), LIVE]


class Quota(Section, frozen=True):
    """Limits on the messages of a user; see `docs/security.md`."""

    interval_ms: Annotated[int, fields.plain("Interval to which the limits apply.", 1, DAY_MS), LIVE] = 1000
    max_messages: Annotated[
        int | None, fields.plain("Most messages of one user in an interval. Absent or 0: no limit.", 0, INT32_MAX), LIVE
    ] = None
    tcp_max_messages: Annotated[
        int | None, fields.plain("The same for all TCP connections together.", 0, INT32_MAX), LIVE
    ] = None
    users: Annotated[
        dict[str, int],
        fields.plain("Limits by user (name or number), instead of `max_messages`. 0: no limit.", 0, INT32_MAX),
        LIVE,
    ] = field(default_factory=dict)


class Timestamps(Section, frozen=True):
    """The timestamp of a message in Kafka; see `docs/delivery.md`."""

    policy: Annotated[TimestampPolicy, fields.plain("Policy if neither the topic nor the input has one."), LIVE] = (
        "clamp"
    )
    # The default is less than the shortest retention in common use: Kafka could delete a message with an older
    # timestamp right after the ack.
    before_max_ms: Annotated[
        int,
        fields.plain("Longest time before the arrival that `clamp` accepts.", 0, INT32_MAX),
        LIVE,
    ] = 3_600_000
    # Brokers refuse timestamps that are too far ahead, by default by one hour (log.message.timestamp.after.max.ms). The
    # default here is so much less that a difference between the clocks of daemon and broker does not matter.
    after_max_ms: Annotated[
        int, fields.plain("`clamp` accepts a client's timestamp up to this time after the arrival.", 0, DAY_MS), LIVE
    ] = 600_000
    topics: Annotated[dict[str, TimestampPolicy], fields.plain("A topic's policy; it precedes all others."), LIVE] = (
        field(default_factory=dict)
    )


class UnixDatagram(Section, frozen=True):
    """The datagram socket; each message is one `sendto()`."""

    enable: Annotated[bool, fields.plain("Receive on this socket."), RESTART_TO_BIND] = True
    path: Annotated[str, fields.socket_path("The socket file."), RESTART_TO_BIND] = "/run/bruce.dgram"
    when_full: Annotated[
        Literal["discard", "block"],
        fields.plain("While the slab is full: discard new messages, or block their senders."),
        LIVE,
    ] = "discard"
    timestamps: TimestampSetting = None
    mode: ModeSetting = None
    user: UserSetting = None
    group: GroupSetting = None
    allow_users: AllowUsersSetting = ()
    allow_groups: AllowGroupsSetting = ()


class UnixStream(Section, frozen=True):
    """The UNIX stream socket: messages back to back, with back-pressure."""

    enable: Annotated[bool, fields.plain("Accept connections."), RESTART_TO_BIND] = False
    path: Annotated[str, fields.socket_path("The socket file."), RESTART_TO_BIND] = "/run/bruce.stream"
    mode: ModeSetting = None
    user: UserSetting = None
    group: GroupSetting = None
    allow_users: AllowUsersSetting = ()
    allow_groups: AllowGroupsSetting = ()


class Tcp(Section, frozen=True):
    """The stream of `[input.unix_stream]` over TCP, open to every program that can connect."""

    enable: Annotated[bool, fields.plain("Accept connections."), RESTART_TO_BIND] = False
    host: Annotated[
        str, fields.pattern("Address to listen on.", r"[^\s\[\]]+", "127.0.0.1", fields.host), RESTART_TO_BIND
    ] = "127.0.0.1"
    port: Annotated[int, fields.plain("Port; 0 lets the kernel choose one.", 0, 65535), RESTART_TO_BIND] = 9000
    loopback_only: Annotated[bool, fields.plain("Refuse to start with a `host` that other hosts can reach."), LIVE] = (
        True
    )


class Streams(Section, frozen=True):
    """The processes that serve the UNIX stream socket and the TCP port."""

    workers: Annotated[
        int,
        fields.plain("Processes that share the connections; 0: half the cores, at most 8.", 0, MAX_WORKERS),
        restart("the daemon divides the slab among the inputs at the start"),
    ] = 0
    when_full: Annotated[
        Literal["discard", "block"],
        fields.plain("While the slab is full: discard new messages, or stop reading."),
        LIVE,
    ] = "block"
    timestamps: TimestampSetting = None
    max_connections_per_user: Annotated[
        int,
        fields.plain(
            "Most connections of a user (TCP: an address) to one worker; further ones are closed.", 1, 1_000_000
        ),
        LIVE,
    ] = 8192
    max_unfinished_size: Annotated[
        int,
        fields.size(
            "Memory of all workers for messages that have arrived only in part; without room, connections wait.",
            MIB,
            64 * GIB,
        ),
        LIVE,
    ] = 256 * MIB
    max_unfinished_size_per_user: Annotated[
        int, fields.size("The same, of a user (TCP: an address).", MIB, 64 * GIB), LIVE
    ] = 64 * MIB
    unfinished_timeout_s: Annotated[
        int, fields.plain("Longest pause inside a message; then the connection is closed.", 1, 86_400), LIVE
    ] = 60
    max_attempt_size: Annotated[
        int,
        fields.size(
            "Memory of the slab for one fenced attempt (`docs/protocol.md`); the rest goes to a spill file. All "
            "open attempts share half of the slab; with 0, one attempt may take that whole half.",
            0,
            64 * GIB,
        ),
        LIVE,
    ] = 0
    max_spill_size: Annotated[
        int,
        fields.size(
            "Disk space of all spill files; a twentieth of the file system stays free. 0: none; "
            "attempts too large for the slab are discarded.",
            0,
            1024 * GIB,
        ),
        LIVE,
    ] = 32 * GIB
    spill_dir: Annotated[
        str | None,
        fields.path("Parent of the spill files' directory. Absent: the *state directory*."),
        restart("the daemon looks for old spill files only at the start"),
    ] = None

    @property
    def worker_count(self) -> int:
        """Return `workers`; if it is 0, return half the number of this machine's cores, rounded up, but at most 8."""
        return self.workers or min(8, ((os.cpu_count() or 1) + 1) // 2)


class Input(Section, frozen=True):
    """Sockets that receive messages."""

    max_datagram_size: Annotated[
        int,
        fields.size("Largest datagram; a longer one counts as malformed.", SMALLEST_MESSAGE, 16 * MIB),
        RESTART_FOR_SIZES,
    ] = 64 * KIB
    allow_large_datagrams: Annotated[
        bool, fields.plain("Allow a `max_datagram_size` that clients reach only with a raised SO_SNDBUF."), LIVE
    ] = False
    max_stream_size: Annotated[
        int,
        fields.size("Largest message on a stream, without the 4 bytes of its length.", SMALLEST_MESSAGE - 4, GIB),
        LIVE,
    ] = 2 * MIB
    unix_datagram: UnixDatagram = UnixDatagram()
    unix_stream: UnixStream = UnixStream()
    tcp: Tcp = Tcp()
    streams: Streams = Streams()
    quota: Quota = Quota()
