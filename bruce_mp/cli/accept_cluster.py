"""`bruce accept-cluster`: let a daemon send the messages that it holds for an earlier Kafka cluster to the present one.

Exit status: 0 if the daemon accepts the cluster, 1 if the daemon's brokers do not belong to the given cluster or the
held messages are for that cluster already, 4 if the daemon gives another response or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from bruce_mp.cli.options import command_parser
from bruce_mp.cli.status_client import add_address, add_token, request_change

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    description = "Let a daemon send the messages that it holds for an earlier Kafka cluster to the present one."
    parser = command_parser("accept-cluster", description, __doc__)
    add_address(parser)
    add_token(parser)
    parser.add_argument("cluster_id", help="id of the present cluster, as in the log and on /healthz")
    args = parser.parse_args(argv)
    return request_change(args, f"/accept_cluster?id={quote(args.cluster_id, safe='')}")
