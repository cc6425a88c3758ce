"""`bruce accept-cluster`: send the messages that wait for one Kafka cluster to another one.

Exit status: 0 if the daemon accepts the cluster, 1 if its brokers do not belong to it, 4 if no daemon answered.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING
from urllib.parse import quote

from bruce_mp.cli.status_client import add_address, add_token, request_change

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Request the change and print the response."""
    description = "Send the messages that a running daemon holds for one Kafka cluster to the cluster of its brokers."
    statuses = "Exit status: 0 if the cluster was accepted, 1 if it was refused, 4 if no daemon answered."
    parser = ArgumentParser(prog="bruce accept-cluster", description=description, epilog=statuses)
    add_address(parser)
    add_token(parser)
    parser.add_argument("cluster_id", help="the id of the brokers' cluster, as in the log and on /healthz")
    args = parser.parse_args(argv)
    return request_change(args, f"/accept_cluster?id={quote(args.cluster_id, safe='')}")
