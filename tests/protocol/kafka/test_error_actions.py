"""The error table: complete, named as Kafka names its errors, and with the decision for each code."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import kafka.errors
import pytest

from bruce_mp.protocol.kafka.error_actions import CONNECTION_LOST, ERROR_TABLE, Action, error_row
from bruce_mp.protocol.kafka.error_table_page import render

PAGE = Path(__file__).parents[3] / "docs" / "error-table.md"

# Error codes by the specified action; the action for all other codes of -1 to 133 is to discard.
SPECIFIED = {
    Action.OK: {0, 46},
    Action.RESEND: {2, 19, 20, 51, 55, 89},
    Action.PAUSE_AND_REROUTE: {
        *(3, 5, 6, 7, 8, 9, 13, 45, 47, 49, 56, 59, 72, 74, 75, 80, 83, 84, 100, 103, 108, 129),
    },
    Action.FATAL_FOR_TOPIC: {21, 31, 33, 34, 35, 42, 48, 50, 52, 53, 58, 90, 114, 115, 120},
}
# Where later decisions went beyond it.
AMENDED = {
    Action.RESEND: {-1},
    Action.HALVE: {10, 18, 87},
    Action.RESTAMP: {32},
    Action.BUMP_EPOCH: {45, 47, 49, 59},
    Action.AWAIT_PERMISSION: {29, 31},
    Action.SEND_UNNUMBERED: {43},
    Action.SEND_UNCOMPRESSED: {76},
}
CLUSTER_NOT_ABLE_NOW = (3, 5, 6, 7, 8, 9, 13, 19, 20, 56)
# kafka-python keeps the older names of these.
OTHER_NAMES = {
    -1: "UNKNOWN",
    0: "NO_ERROR",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MESSAGE_SIZE_TOO_LARGE",
    17: "INVALID_TOPIC",
    39: "INVALID_REPLICATION_ASSIGNMENT",
}


def decided(code: int) -> Action:
    for table in (AMENDED, SPECIFIED):
        for action, codes in table.items():
            if code in codes:
                return action
    return Action.DISCARD


def names_in_kafka_python() -> dict[int, str]:
    classes: list[Any] = [one for one in vars(kafka.errors).values() if inspect.isclass(one)]
    return {one.errno: one.message for one in classes if getattr(one, "errno", None) is not None}


def test_the_table_has_one_row_for_each_code() -> None:
    assert list(ERROR_TABLE) == list(range(-1, 134))
    assert all(row.code == code and row.reason for code, row in ERROR_TABLE.items())


def test_each_error_has_its_decided_action() -> None:
    codes = range(-1, 134)
    assert {code: error_row(code).action for code in codes} == {code: decided(code) for code in codes}


def test_error_names_match_kafka_python() -> None:
    known = names_in_kafka_python()
    assert len(known) == 129
    assert {code: OTHER_NAMES.get(code, error_row(code).name) for code in known} == known


def test_cluster_errors_are_limited_only_by_the_config() -> None:
    rows = [CONNECTION_LOST, *map(error_row, CLUSTER_NOT_ABLE_NOW)]
    assert all(row.counts_as_retry and row.retry_limit is None for row in rows)
    assert {row.action for row in rows} == {Action.RESEND, Action.PAUSE_AND_REROUTE}


@pytest.mark.parametrize("code", [-1, 2])
def test_possibly_permanent_errors_are_retried_five_times(code: int) -> None:
    assert (error_row(code).action, error_row(code).retry_limit) == (Action.RESEND, 5)


def test_only_unchanged_resends_count_as_attempts() -> None:
    again = {Action.RESEND, Action.AWAIT_PERMISSION, Action.PAUSE_AND_REROUTE, Action.BUMP_EPOCH}
    assert all(row.counts_as_retry == (row.action in again) for row in ERROR_TABLE.values())
    assert all(row.counts_as_retry for row in ERROR_TABLE.values() if row.retry_limit is not None)


def test_the_table_lists_errors_that_may_duplicate() -> None:
    doubled = {code for code, row in ERROR_TABLE.items() if row.may_duplicate}
    assert doubled == {-1, 6, 7, 13, 20, 45, 47, 49, 56, 59}
    assert CONNECTION_LOST.may_duplicate


@pytest.mark.parametrize("code", [-2, 134, 999])
def test_an_undocumented_error_discards(code: int) -> None:
    row = error_row(code)
    assert (row.code, row.name, row.action) == (code, "UNDOCUMENTED", Action.DISCARD)


def test_the_page_shows_the_table() -> None:
    assert PAGE.read_text() == render(), "run: python -m bruce_mp.protocol.kafka.error_table_page > docs/error-table.md"


def test_the_errors_page_lists_every_code() -> None:
    words = " ".join(render().replace("|", " ").split())
    assert [row.name for row in ERROR_TABLE.values() if f" {row.code} {row.name}" not in words] == []
