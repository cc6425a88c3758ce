"""`bruce-spark`: run the pipelines from the command line.

Exit status: 0 done; 1 an error, with its reason; 2 invalid options; 3 missing, doubled or out-of-order messages
(`audit`), or rows that cannot be messages (`backfill --dry-run`).
"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError, ExitCode
from bruce_mp.protocol.client.replay_rules import ABANDONED, DoubtfulPolicy, LineSelection
from bruce_mp.spark.ledger_files import merge_ledger
from bruce_mp.spark.session import describe_versions, start_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bruce_mp.spark.audit.follow import Follow

__all__ = ["main"]

_HEARTBEAT_INTERVAL: Final = "2s"
"""Interval at which executors report how many rows they have read, for the display of progress (by default 10 s)."""
_SPARK_ERROR_LINES: Final = 6
"""How many lines of an error of Spark are shown; the stack trace follows these lines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a pipeline and return the exit status."""
    args = _create_parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except BruceError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), ExitCode.SETUP)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        return _fail(_describe_spark_error(error), ExitCode.SETUP)


def _fail(text: str, status: ExitCode) -> int:
    sys.stderr.write(f"bruce-spark: {text}\n")
    return status


def _describe_spark_error(error: Exception) -> str:
    """Return the text of the `SinkError` in Spark's error or, if there is none, the first lines of Spark's text."""
    text = str(error)
    start = text.rfind("[BRUCE_")
    return text[start:].split("\n", 1)[0] if start >= 0 else "\n".join(text.splitlines()[:_SPARK_ERROR_LINES])


def _create_parser() -> ArgumentParser:
    parser = ArgumentParser("bruce-spark", description="Data pipelines on Spark, through the daemon of each host.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text, add_arguments, run in (
        ("backfill", "send the rows of files to topics", _add_backfill_arguments, _run_backfill),
        ("replay", "send discarded or exported messages through a daemon again", _add_replay_arguments, _run_replay),
        ("audit", "compare the sent messages with those in Kafka", _add_audit_arguments, _run_audit),
        ("fleet", "list the status of many daemons, worst first", _add_fleet_arguments, _run_fleet),
        ("ledger", "maintain a ledger", _add_ledger_arguments, _run_ledger),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if run is not _run_ledger:  # the command `ledger` needs no Spark
            command.add_argument(
                "--master", metavar="URL", help="Spark's master (default local[*])", default="local[*]"
            )
            _add_settings(command, "--conf", "setting of Spark")
        add_arguments(command)
    return parser


def _add_settings(parser: ArgumentParser, name: str, text: str) -> None:
    """Add a repeatable argument KEY=VALUE."""
    parser.add_argument(name, metavar="KEY=VALUE", action="append", default=[], type=_parse_setting, help=text)


def _start_session(args: Namespace, *, kafka: bool = False) -> SparkSession:
    """Start the session of a command; `kafka` adds Spark's Kafka connector."""
    if kafka:
        sys.stderr.write(f"{describe_versions()}\n")
    # Log lines would interrupt the line of progress.
    defaults = {"spark.log.level": "FATAL", "spark.executor.heartbeatInterval": _HEARTBEAT_INTERVAL}
    return start_session("bruce-spark", master=args.master, kafka=kafka, settings={**defaults, **dict(args.conf)})


def _parse_setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ArgumentTypeError(f"'{text}' is not KEY=VALUE")
    return key, value


def _add_sink_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--socket", metavar="PATH|HOST:PORT", required=True, help="the daemon's stream input, on each host"
    )
    parser.add_argument("--topic", help="topic of the rows that name none")
    parser.add_argument("--rate", metavar="N", type=int, help="maximum number of records per second of each task")
    parser.add_argument("--timeout-ms", metavar="MS", type=int, help="longest wait without progress, in ms")
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT,...",
        help="brokers to ask for the retention of the topics, to warn of messages that are older",
    )  # fmt: skip
    _add_settings(parser, "--kafka", "with --bootstrap: option of Spark's Kafka source")
    parser.add_argument("--ledger", metavar="DIR", help="record the sent messages in this ledger, for the audit")
    _add_settings(parser, "--option", "option of the data source bruce, for example acks=received")


_SINK_ARGUMENTS: Final = {
    "bruce.socket": "socket",
    "topic": "topic",
    "maxRecordsPerSecond": "rate",
    "timeoutMs": "timeout_ms",
    "ledger": "ledger",
}
"""Options of the sink, each with the attribute of the parsed arguments that sets it."""


def _kafka_options(args: Namespace) -> dict[str, str] | None:
    """Return the options of Spark's Kafka source; None if `--bootstrap` is absent."""
    return None if args.bootstrap is None else {"kafka.bootstrap.servers": args.bootstrap, **dict(args.kafka)}


def _sink_options(args: Namespace) -> dict[str, str]:
    given = {option: getattr(args, argument) for option, argument in _SINK_ARGUMENTS.items()}
    return {**{name: str(value) for name, value in given.items() if value is not None}, **dict(args.option)}


def _add_backfill_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", help="a file, a folder or a glob")
    parser.add_argument(
        "--format", choices=("parquet", "csv", "json", "text"), required=True, help="format of the files"
    )
    parser.add_argument("--checkpoint", metavar="DIR", help="directory for the progress of the backfill")
    for name in ("value", "key", "partition-key", "timestamp"):
        parser.add_argument(f"--{name}", metavar="SQL", help=f"expression over the columns for the {name}")
    parser.add_argument("--topic-column", metavar="SQL", help="expression over the columns for the topic")
    parser.add_argument("--files-per-chunk", metavar="N", type=int, default=8, help="files that are committed together")
    parser.add_argument(
        "--tasks-per-chunk", metavar="N", type=int,
        help="divide each chunk evenly among N tasks; the messages of a task must fit into the daemon's slab (memory)",
    )  # fmt: skip
    _add_settings(parser, "--read", "option of Spark's file reader, for example sep=; for CSV")
    parser.add_argument(
        "--mode", choices=("deadletter", "failfast", "permissive"), default="deadletter",
        help="malformed lines of CSV and JSON become bad rows (deadletter, the default), stop Spark with an error "
        "(failfast), or become rows of nulls (permissive)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="read and count, send nothing")
    _add_sink_arguments(parser)


def _run_backfill(args: Namespace) -> int:
    from bruce_mp.spark.pipelines.backfill import Backfill, backfill, dry_run  # noqa: PLC0415 - PySpark is slow

    if not args.dry_run and args.checkpoint is None:
        return _fail("backfill needs --checkpoint DIR to resume after an interruption.", ExitCode.USAGE)
    plan = Backfill(
        args.path, args.format, args.checkpoint or "", _sink_options(args),
        value=args.value, key=args.key, topic=args.topic_column, partition_key=args.partition_key,
        timestamp=args.timestamp, files_per_chunk=args.files_per_chunk, tasks_per_chunk=args.tasks_per_chunk,
        reader=dict(args.read), mode=args.mode, kafka=_kafka_options(args),
    )  # fmt: skip
    spark = _start_session(args, kafka=args.bootstrap is not None)
    if not args.dry_run:
        backfill(spark, plan)
        return ExitCode.OK
    counts = dry_run(spark, plan)
    for topic, (rows, size) in sorted(counts.topics.items()):
        print(f"{topic}: {rows:,} messages, {size:,} bytes")
    for problem, rows in sorted(counts.bad_row_counts.items()):
        print(f"{rows:,} rows cannot be messages: {problem}")
    if counts.warning:
        print(counts.warning)
    return ExitCode.PROBLEMS_FOUND if counts.bad_row_counts else ExitCode.OK


def _add_replay_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", help="discard files and exports")
    parser.add_argument("--state", metavar="DIR", required=True, help="directory for the record of replayed messages")
    parser.add_argument(
        "--only-topic", metavar="TOPIC", action="append", default=[], help="only this topic; repeatable"
    )
    parser.add_argument(
        "--info",
        metavar="REASON",
        action="append",
        default=[],
        help="only messages discarded for this reason, spelled as in the discard files; repeatable",
    )
    parser.add_argument(
        "--include-abandoned", action="store_true", help=f"also {ABANDONED}: messages that their client sent again"
    )
    parser.add_argument("--since", metavar="MS", type=int, help="only timestamps at or after this, ms since the epoch")
    parser.add_argument("--until", metavar="MS", type=int, help="only timestamps before this, ms since the epoch")
    parser.add_argument(
        "--doubtful", choices=("refuse", "send", "skip"), default="refuse",
        help="treatment of messages that a killed replay may have sent (default refuse)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="read and count, send nothing")
    _add_sink_arguments(parser)


def _run_replay(args: Namespace) -> int:
    from bruce_mp.spark.pipelines.replay import replay  # noqa: PLC0415 - PySpark is slow

    selection = LineSelection(args.only_topic, args.info, args.since, args.until, args.include_abandoned)
    spark = _start_session(args, kafka=args.bootstrap is not None)
    counts = replay(
        spark, args.files, args.state, _sink_options(args), selection=selection,
        doubtful=DoubtfulPolicy(args.doubtful), dry_run=args.dry_run, kafka=_kafka_options(args),
    )  # fmt: skip
    print(
        f"{counts.sent:,} {'to send' if args.dry_run else 'sent'}, {counts.already:,} replayed before, "
        f"{counts.filtered:,} filtered out, {counts.no_message:,} lines without a discarded message, "
        f"{counts.in_kafka:,} left out because Kafka has or may have them, {counts.abandoned:,} because their client "
        "sends them again"
    )
    return ExitCode.OK


def _add_audit_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--bootstrap", metavar="HOST:PORT,...", required=True, help="brokers")
    parser.add_argument("--topic", action="append", required=True, help="topic to audit; repeatable")
    parser.add_argument(
        "--ledger", metavar="DIR", action="append", required=True, help="ledger of sent messages; repeatable"
    )
    parser.add_argument("--discards", metavar="PATH", action="append", default=[], help="discard files; repeatable")
    parser.add_argument("--output", metavar="DIR", required=True, help="directory for the tables and report.html")
    parser.add_argument("--table-format", default="parquet", help="format of the tables (default parquet)")
    parser.add_argument("--tables", metavar="CATALOG.NAMESPACE", help="write the tables there instead of to --output")
    parser.add_argument(
        "--fail-on-unknown",
        action="store_true",
        help="exit with status 3 also if Kafka has messages that no ledger has",
    )
    parser.add_argument(
        "--sample", metavar="N", type=int, default=0,
        help="show up to N messages of each kind of problem, and write them to the table samples",
    )  # fmt: skip
    _add_settings(parser, "--kafka", "option of Spark's Kafka source")
    parser.add_argument(
        "--follow", action="store_true",
        help="keep running, and report again whenever all messages of a minute should have arrived (--lateness)",
    )  # fmt: skip
    for name, (least, default, text) in _FOLLOW_ARGUMENTS.items():
        seconds = partial(_parse_seconds, least)
        parser.add_argument(f"--{name}", metavar="S", type=seconds, default=default, help=f"with --follow: {text}")
    parser.add_argument(
        "--stop-when-bad", action="store_true", help="with --follow: end with status 3 after the first bad report"
    )


_FOLLOW_ARGUMENTS: Final = {
    "every": (0, 30, "seconds between reads of Kafka (default 30)"),
    "lateness": (0, 120, "seconds that a message may arrive late (default 120)"),
    "window": (60, 7200, "length in seconds of the period that each report covers (default 7200)"),
    "until-idle": (0, None, "end after this many seconds without messages"),
}
"""The arguments of `--follow` that are a number of seconds, each with its minimum, its default and its help.

A window shorter than a minute has no minutes to report.
"""


def _parse_seconds(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ArgumentTypeError(f"'{text}' is not a whole number from {least} up")
    return int(text)


def _run_audit(args: Namespace) -> int:
    from bruce_mp.spark.audit.follow import Follow  # noqa: PLC0415 - PySpark is slow
    from bruce_mp.spark.audit.run import Audit, audit, read_samples  # noqa: PLC0415
    from bruce_mp.spark.audit.samples import describe_samples  # noqa: PLC0415

    plan = Audit(
        args.bootstrap, args.topic, args.ledger, args.output, args.discards, dict(args.kafka),
        table_format=args.table_format, namespace=args.tables, unknown_is_bad=args.fail_on_unknown,
        samples_per_problem=args.sample,
    )  # fmt: skip
    spark = _start_session(args, kafka=True)
    if args.follow:
        follow_plan = Follow(
            plan, every_s=args.every, lateness_s=args.lateness, window_s=args.window, until_idle_s=args.until_idle,
            stop_when_bad=args.stop_when_bad,
        )  # fmt: skip
        return _run_follow(spark, follow_plan)
    verdict = audit(spark, plan)
    print(verdict, *verdict.lines, sep="\n")
    for line in describe_samples(read_samples(spark, plan)) if plan.samples_per_problem else ():
        print(line)
    return ExitCode.OK if verdict.is_good else ExitCode.PROBLEMS_FOUND


def _run_follow(spark: SparkSession, plan: Follow) -> int:
    """Report until SIGTERM, SIGINT or the plan ends the audit; return 3 if any report was bad."""
    from bruce_mp.spark.audit.follow import follow  # noqa: PLC0415 - PySpark is slow

    status = ExitCode.OK
    for verdict in follow(spark, plan, _handle_stop_signals()):
        if not verdict.is_good or (verdict.unknown and not verdict.sent):
            print(*verdict.lines, sep="\n", flush=True)
        if not verdict.is_good:
            status = ExitCode.PROBLEMS_FOUND
    return status


def _handle_stop_signals() -> Event:
    """Return an event that SIGTERM and SIGINT set, instead of ending the process."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _add_fleet_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("daemons", nargs="*", metavar="HOST:PORT", help="http.listen addresses of the daemons")
    parser.add_argument("--hosts", metavar="FILE", help="a file with more such addresses, one a line")
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="directory of the table samples, to which each round is appended"
    )
    parser.add_argument("--rounds", metavar="N", type=int, default=1, help="how often to ask all daemons (default 1)")
    parser.add_argument("--every", metavar="S", type=float, default=60, help="seconds between rounds (default 60)")


def _run_fleet(args: Namespace) -> int:
    from bruce_mp.spark.pipelines.fleet import collect_fleet, rank_daemons, read_hosts  # noqa: PLC0415 - PySpark is slow

    hosts = read_hosts(args.daemons, args.hosts)
    spark = _start_session(args)
    stop = _handle_stop_signals()
    print(rank_daemons(collect_fleet(spark, hosts, args.output, rounds=args.rounds, every_s=args.every, stop=stop)))
    return ExitCode.OK


def _add_ledger_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("compact",), help="compact: merge the ledger's small files into larger ones")
    parser.add_argument("ledger", metavar="DIR", help="directory or URI of the ledger")


def _run_ledger(args: Namespace) -> int:
    try:
        files = merge_ledger(args.ledger)
    except (OSError, ValueError) as error:
        return _fail(f"{args.ledger}: {error}", ExitCode.SETUP)
    print(
        f"{files.merged:,} files merged into {files.written:,}; {files.removed:,} files removed that were merged before"
    )
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
