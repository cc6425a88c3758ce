"""Read the counts of Spark's running stages from the driver's JVM; Spark Connect has no access to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RunningStages"]


class StageCounts(NamedTuple):
    """Rows that the tasks of a stage have read, and the fraction of its tasks that have ended, 0 to 1."""

    rows: int = 0
    ended_fraction: float = 0.0


class RunningStages:
    """The running stages of a session that read files or Kafka, or with `shuffled` those that read a shuffle.

    Executors report their rows with each heartbeat (`spark.executor.heartbeatInterval`).
    """

    def __init__(self, spark: SparkSession, *, shuffled: bool = False) -> None:
        self._counter = "shuffleReadRecords" if shuffled else "inputRecords"
        context = getattr(spark, "_sc", None)  # None under Spark Connect; PySpark has no other way to these counts
        self._store: Any = None if context is None else context._jsc.sc().statusStore()  # noqa: SLF001

    @property
    def are_known(self) -> bool:
        """Return False under Spark Connect."""
        return self._store is not None

    def counts(self) -> StageCounts:
        """Return the counts of the stage with the most rows; zeros without one, or under Spark Connect."""
        if self._store is None:
            return StageCounts()
        stages = self._store.activeStages()  # a Scala sequence, which Python cannot iterate over
        counts = [
            StageCounts(getattr(stage, self._counter)(), stage.numCompleteTasks() / max(stage.numTasks(), 1))
            for stage in map(stages.apply, range(stages.size()))
        ]
        return max((count for count in counts if count.rows), default=StageCounts())
