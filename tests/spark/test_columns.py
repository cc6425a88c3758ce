"""Columns: the accepted ones, their types, and the errors for all others."""

from __future__ import annotations

import re

import pytest

from bruce_mp.spark.columns import check_columns
from bruce_mp.spark.errors import SchemaError

HEADERS = "array<struct<key:string,value:binary>>"


@pytest.mark.parametrize(
    "columns",
    [
        [("value", "string")],
        [("value", "binary"), ("key", "string")],
        [("topic", "string"), ("value", "binary"), ("key", "binary"), ("headers", HEADERS)],
        [("value", "string"), ("partition_key", "int"), ("timestamp", "timestamp")],
        [("value", "string"), ("partition_key", "bigint"), ("timestamp", "timestamp_ntz")],
        [("value", "string"), ("partition_key", "smallint"), ("headers", HEADERS.replace("binary", "string"))],
    ],
)
def test_valid_columns_are_accepted(columns: list[tuple[str, str]]) -> None:
    check_columns(columns, "t")


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ([("key", "string")], "t", "There is no column 'value'"),
        ([("value", "string")], None, "neither a column 'topic' nor an option 'topic'"),
        ([("value", "int")], "t", "Column 'value' is int: it must be binary or string."),
        ([("value", "string"), ("partition", "int")], "t", "Give 'partition_key' (an integer)"),
        ([("value", "string"), ("partition_key", "string")], "t", "it must be bigint or int or smallint or tinyint."),
        ([("value", "string"), ("timestamp", "bigint")], "t", "is bigint: it must be timestamp or timestamp_ntz."),
        ([("value", "string"), ("headers", "map<string,string>")], "t", "Column 'headers' is map<string,string>"),
        ([("value", "string"), ("id", "bigint")], "t", "Column 'id' is not known: columns are value, key, topic"),
    ],
)
def test_invalid_columns_name_the_expected_type(columns: list[tuple[str, str]], topic: str | None, text: str) -> None:
    with pytest.raises(SchemaError, match=r"^\[BRUCE_SCHEMA\] .*" + re.escape(text)):
        check_columns(columns, topic)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([("VALUE", "string")], "Column 'VALUE': spell it 'value'."),
        (
            [("Value", "string"), ("Topic", "string")],
            "Column 'Topic': spell it 'topic'. Column 'Value': spell it 'value'.",
        ),
        ([("value", "string"), ("KEY", "int")], "Column 'KEY': spell it 'key'."),
    ],
)
def test_a_column_in_other_letters_is_the_only_problem(columns: list[tuple[str, str]], text: str) -> None:
    topic = None if "Topic" in dict(columns) else "t"
    with pytest.raises(SchemaError, match=rf"^\[BRUCE_SCHEMA\] {re.escape(text)}$"):
        check_columns(columns, topic)


def test_a_second_column_in_other_letters_is_not_known() -> None:
    with pytest.raises(SchemaError, match="Column 'VALUE' is not known"):
        check_columns([("value", "string"), ("VALUE", "string")], "t")


def test_all_column_problems_are_reported_together() -> None:
    with pytest.raises(SchemaError, match=r"'id' is not known.*no column 'value'.*neither a column 'topic'"):
        check_columns([("id", "int")], None)
