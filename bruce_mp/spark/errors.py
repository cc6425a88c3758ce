"""Errors of the data source.

Spark shows only the text of a Python error, not its class. So each text begins with a name of the error, its condition,
in brackets, as the texts of Spark's own errors do.
"""

from __future__ import annotations

from bruce_mp.errors import BruceError, ExitCode

__all__ = ["OptionError", "RowError", "SchemaError", "SinkError", "TaskError", "WorkerPythonError", "WriteOnlyError"]


class SinkError(BruceError):
    """Base class of the errors."""

    condition = "BRUCE_ERROR"

    def __init__(self, text: str) -> None:
        super().__init__(f"[{self.condition}] {text}")


class OptionError(SinkError):
    """An unknown option or an invalid value. Raised on the driver."""

    condition = "BRUCE_OPTION"
    exit_code = ExitCode.USAGE


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
    """A row that cannot be a message, for example because it has no topic or is too large. The task fails."""

    condition = "BRUCE_ROW"


class TaskError(SinkError):
    """The daemon is unreachable, closed the connection, or did not deliver all messages.

    The task fails, and Spark may run it again.
    """

    condition = "BRUCE_TASK"
