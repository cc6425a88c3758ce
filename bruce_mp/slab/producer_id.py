"""The producer id of a slab, and the decision between batches with and without sequence numbers.

Brokers recognize a repeated batch by its producer id, epoch and sequence numbers.  A daemon requests a new producer id
from the brokers when it starts; the sequence numbers of all partitions then begin at 0.  If the slab holds a batch that
was built with sequence numbers, the daemon keeps the old producer id, because the numbers are valid only with that id.

A producer id belongs to one cluster: another cluster may have given the same id to another producer, and would take the
daemon's batches for repetitions.  So the slab also has the id of the cluster, and `change_cluster` replaces both ids.
It stores the cluster's id first, so that no daemon ever sends a cluster batches with another cluster's producer id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab import layout as lay
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.tables import PartitionTable

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = [
    "change_cluster",
    "cluster_change_count",
    "cluster_of",
    "disable_idempotence",
    "foreign_cluster_sentence",
    "is_idempotent",
    "is_same_cluster",
    "reset_producer_id",
    "store_cluster",
    "store_producer",
]

_UNKNOWN, _SUPPORTED, _UNSUPPORTED, _CHANGING = 0, 1, 2, 3
"""Values of SUPER_IDEMPOTENCE; in _CHANGING, batches may have sequence numbers of the old cluster: see
`change_cluster`."""


def is_idempotent(slab: Slab) -> bool:
    """Return True if batches get sequence numbers, by which brokers recognize repeated batches."""
    return slab.words[lay.SUPER_IDEMPOTENCE >> 2] == _SUPPORTED


def reset_producer_id(slab: Slab) -> None:
    """Make the router request a new producer id, unless a batch in the slab has sequence numbers.

    Only the supervisor calls this, when the daemon starts.
    """
    if not any(found.sequence >= 0 for found in sweep(slab, lay.BUILT)):
        slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _UNKNOWN


def store_producer(slab: Slab, producer_id: int) -> None:
    """Store the producer id, so that later batches get sequence numbers (router only).

    No batch in the slab may have sequence numbers yet, except while `change_cluster` replaces the cluster.
    """
    if slab.words[lay.SUPER_IDEMPOTENCE >> 2] == _CHANGING:
        PartitionTable(slab).change_epochs()
    else:
        PartitionTable(slab).reset()
    slab.store_signed(lay.SUPER_PRODUCER_ID, producer_id)
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _SUPPORTED


def disable_idempotence(slab: Slab) -> None:
    """Make later batches omit sequence numbers, because brokers or `required_acks` do not permit them (router only)."""
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _UNSUPPORTED


def cluster_of(slab: Slab) -> str:
    """Return the id of the cluster to which the slab's messages go; empty if the id is not known yet."""
    length = min(slab.words[lay.SUPER_CLUSTER_ID_LENGTH >> 2], lay.CLUSTER_ID_MAX)
    return bytes(slab.view[lay.SUPER_CLUSTER_ID : lay.SUPER_CLUSTER_ID + length]).decode("utf-8", "replace")


def cluster_change_count(slab: Slab) -> int:
    """Return the number of times that an operator accepted another cluster."""
    return slab.words[lay.SUPER_CLUSTER_CHANGES >> 2]


def is_same_cluster(known: str, found: str) -> bool:
    """Return True if the cluster id in the slab agrees with the id that a broker reports, or one of them is empty.

    The slab's id `known` is empty until a broker reports one; `found` is empty for brokers before Kafka 0.10.1.
    """
    return not known or not found or known == found.encode()[: lay.CLUSTER_ID_MAX].decode("utf-8", "replace")


def foreign_cluster_sentence(broker: str, known: str, found: str) -> str:
    """Return the error message about a broker that belongs to another cluster."""
    return (
        f"Broker {broker} belongs to the cluster {found}, but the messages are for the cluster {known}. Correct "
        "kafka.bootstrap_servers or the broker's address; if the other cluster is the right one, run bruce "
        f"accept-cluster {found}."
    )


def store_cluster(slab: Slab, cluster_id: str) -> None:
    """Store the id of the cluster, unless it is empty (router only).

    An unchanged id is not stored again: to replace the id, the function first empties it, and a dispatcher that reads
    the empty id would accept any broker.
    """
    data = cluster_id.encode()[: lay.CLUSTER_ID_MAX]
    is_unchanged = cluster_of(slab) and is_same_cluster(cluster_of(slab), cluster_id)
    if data and not is_unchanged:
        slab.words[lay.SUPER_CLUSTER_ID_LENGTH >> 2] = 0
        slab.view[lay.SUPER_CLUSTER_ID : lay.SUPER_CLUSTER_ID + len(data)] = data
        slab.words[lay.SUPER_CLUSTER_ID_LENGTH >> 2] = len(data)


def change_cluster(slab: Slab, cluster_id: str, producer_id: int | None) -> None:
    """Store another cluster as the destination of all messages (router only, while no dispatcher has messages).

    The new cluster has issued `producer_id`; None = send batches without sequence numbers.  Each partition enters
    another epoch, so that dispatchers renumber the batches that were built for the old cluster.  If the router is
    killed during the call, the next router requests a producer id from the cluster with the id in the slab.
    """
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _CHANGING
    slab.words[lay.SUPER_CLUSTER_CHANGES >> 2] += 1
    store_cluster(slab, cluster_id)
    if producer_id is None:
        PartitionTable(slab).change_epochs()
        disable_idempotence(slab)
    else:
        store_producer(slab, producer_id)
