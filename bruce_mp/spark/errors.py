"""Errors of the data source.  Spark shows a Python error by its text, so each text begins with a condition of ours."""

from __future__ import annotations

from bruce_mp.errors import BruceError

__all__ = ["OptionError", "RowError", "SchemaError", "SinkError", "TaskError"]


class SinkError(BruceError):
    """Base; `condition` stands in brackets before the text, as Spark's own conditions do."""

    condition = "BRUCE_ERROR"

    def __init__(self, text: str) -> None:
        super().__init__(f"[{self.condition}] {text}")


class OptionError(SinkError):
    """An option that we do not know, or with a value that we do not take.  Raised on the driver."""

    condition = "BRUCE_OPTION"


class SchemaError(SinkError):
    """A column that is missing, of another type, or not ours.  Raised on the driver."""

    condition = "BRUCE_SCHEMA"


class RowError(SinkError):
    """A row that cannot be a message: without a topic, or too large.  Fails its task."""

    condition = "BRUCE_ROW"


class TaskError(SinkError):
    """The daemon is not there, went away, or did not deliver everything.  Fails its task; Spark may run it again."""

    condition = "BRUCE_TASK"
