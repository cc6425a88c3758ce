"""Errors of the data source.

Spark shows only the text of a Python error. So each text begins with the error's condition, such as `[BRUCE_OPTION]`.
"""

from __future__ import annotations

from bruce_mp.errors import BruceError

__all__ = ["OptionError", "RowError", "SchemaError", "SinkError", "TaskError", "WorkerPythonError", "WriteOnlyError"]


class SinkError(BruceError):
    """Base class of the errors; `condition` is the name of the error, as Spark's own errors have one in brackets."""

    condition = "BRUCE_ERROR"

    def __init__(self, text: str) -> None:
        super().__init__(f"[{self.condition}] {text}")


class OptionError(SinkError):
    """An unknown option or an invalid value. Raised on the driver."""

    condition = "BRUCE_OPTION"


class SchemaError(SinkError):
    """A missing or unknown column, or a column of a wrong type. Raised on the driver."""

    condition = "BRUCE_SCHEMA"


class WriteOnlyError(SinkError):
    """A read from the data source, which only writes. Raised on the driver."""

    condition = "BRUCE_WRITE_ONLY"

    def __init__(self) -> None:
        super().__init__(
            "The data source 'bruce' only writes: read topics with Spark's Kafka source, "
            ".format('kafka').option('kafka.bootstrap.servers', 'HOST:PORT').option('subscribe', 'TOPIC')."
        )


class WorkerPythonError(SinkError):
    """The Python of Spark's tasks has no `bruce_mp`. Raised on the driver."""

    condition = "BRUCE_PYTHON"


class RowError(SinkError):
    """A row that cannot be a message, for example because it has no topic or is too large. Fails its task."""

    condition = "BRUCE_ROW"


class TaskError(SinkError):
    """The daemon is unreachable, closed the connection, or did not deliver all messages.

    Fails its task; Spark may retry it.
    """

    condition = "BRUCE_TASK"
