"""The producer id of a slab, and the decision between batches with and without sequence numbers.

Each daemon requests a new producer id from the brokers, under which the sequence numbers of all partitions begin at 0.
If the slab holds a batch with sequence numbers, the daemon keeps the producer id, because the numbers stay valid only
under it.

A producer id belongs to one cluster: another cluster may have given the same id to another producer, and would take our
batches for repetitions.  So the slab also keeps the cluster's id, and `change_cluster` replaces both.  The cluster is
stored first: a router that is killed between the two leaves no producer id of another cluster in use.
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
    "cluster_changes",
    "cluster_of",
    "disable_idempotence",
    "foreign_cluster_sentence",
    "is_idempotent",
    "is_same_cluster",
    "reset_idempotence",
    "store_cluster",
    "store_producer",
]

_UNKNOWN, _SUPPORTED, _UNSUPPORTED, _CHANGING = 0, 1, 2, 3
"""Values of SUPER_IDEMPOTENCE; _CHANGING: `change_cluster` has not finished, so batches may have old numbers."""


def is_idempotent(slab: Slab) -> bool:
    """Return True if batches have sequence numbers, by which brokers recognise repeated batches."""
    return slab.words[lay.SUPER_IDEMPOTENCE >> 2] == _SUPPORTED


def reset_idempotence(slab: Slab) -> None:
    """Let the router request a new producer id, unless a batch has sequence numbers (supervisor only, at its start)."""
    if not any(found.sequence >= 0 for found in sweep(slab, lay.BUILT)):
        slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _UNKNOWN


def store_producer(slab: Slab, producer_id: int) -> None:
    """Store the producer id, so that later batches get sequence numbers (router only).

    No batch may have one yet, unless a router was killed in `change_cluster`.
    """
    if slab.words[lay.SUPER_IDEMPOTENCE >> 2] == _CHANGING:
        PartitionTable(slab).change_epochs()
    else:
        PartitionTable(slab).reset()
    slab.store_signed(lay.SUPER_PRODUCER_ID, producer_id)
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _SUPPORTED


def disable_idempotence(slab: Slab) -> None:
    """Omit sequence numbers, because brokers lack idempotence or `required_acks` forbids it (router only)."""
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _UNSUPPORTED


def cluster_of(slab: Slab) -> str:
    """Return the id of the cluster that the slab's messages are for; empty before the first metadata."""
    length = min(slab.words[lay.SUPER_CLUSTER_ID_LENGTH >> 2], lay.CLUSTER_ID_MAX)
    return bytes(slab.view[lay.SUPER_CLUSTER_ID : lay.SUPER_CLUSTER_ID + length]).decode("utf-8", "replace")


def cluster_changes(slab: Slab) -> int:
    """Return the number of times that an operator accepted another cluster."""
    return slab.words[lay.SUPER_CLUSTER_CHANGES >> 2]


def is_same_cluster(known: str, found: str) -> bool:
    """Return True unless both ids are known and differ; brokers before 0.10.1 name none."""
    return not known or not found or known == found.encode()[: lay.CLUSTER_ID_MAX].decode("utf-8", "replace")


def foreign_cluster_sentence(broker: str, known: str, found: str) -> str:
    """Return the error of a broker that belongs to another cluster."""
    return (
        f"Broker {broker} belongs to the cluster {found}, but the messages are for the cluster {known}. Correct "
        "kafka.bootstrap_servers or the broker's address; if the other cluster is the right one, run bruce "
        f"accept-cluster {found}."
    )


def store_cluster(slab: Slab, cluster_id: str) -> None:
    """Store the id of the cluster if brokers name one (router only).

    An unchanged id is not stored again: a store first empties the id, and a dispatcher that reads it then trusts every
    broker.
    """
    data = cluster_id.encode()[: lay.CLUSTER_ID_MAX]
    if data and not (cluster_of(slab) and is_same_cluster(cluster_of(slab), cluster_id)):
        slab.words[lay.SUPER_CLUSTER_ID_LENGTH >> 2] = 0
        slab.view[lay.SUPER_CLUSTER_ID : lay.SUPER_CLUSTER_ID + len(data)] = data
        slab.words[lay.SUPER_CLUSTER_ID_LENGTH >> 2] = len(data)


def change_cluster(slab: Slab, cluster_id: str, producer_id: int | None) -> None:
    """Send all messages to another cluster, under its producer id or without sequence numbers if it is None.

    Only the router calls this, while it holds all messages.  Each partition enters another epoch, so that dispatchers
    renumber the batches that were built for the old cluster.  If the router is killed before the end, the next one
    requests a producer id of the cluster that the slab names then.
    """
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = _CHANGING
    slab.words[lay.SUPER_CLUSTER_CHANGES >> 2] += 1
    store_cluster(slab, cluster_id)
    if producer_id is None:
        PartitionTable(slab).change_epochs()
        disable_idempotence(slab)
    else:
        store_producer(slab, producer_id)
