"""Read the progress of Spark's running stages from the driver's JVM, to which Spark Connect has no access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RunningStages"]


class StageCounts(NamedTuple):
    """The number of rows that the tasks of a stage have read, and the fraction of tasks that have ended, 0 to 1."""

    rows: int = 0
    ended_fraction: float = 0.0


class RunningStages:
    """The running stages of a session that read files or Kafka or, if `shuffled` is True, that read a shuffle.

    Executors report their numbers of rows with each heartbeat (`spark.executor.heartbeatInterval`).
    """

    def __init__(self, spark: SparkSession, *, shuffled: bool = False) -> None:
        self._counter_name = "shuffleReadRecords" if shuffled else "inputRecords"
        # PySpark has no public function that returns these counts.
        context = getattr(spark, "_sc", None)
        self._store: Any = None if context is None else context._jsc.sc().statusStore()  # noqa: SLF001

    @property
    def has_counts(self) -> bool:
        """Return True unless the session uses Spark Connect."""
        return self._store is not None

    def counts(self) -> StageCounts:
        """Return the counts of the stage with the most rows; zeros if no stage has rows, and under Spark Connect."""
        if self._store is None:
            return StageCounts()
        stages = self._store.activeStages()  # a Scala sequence, which Python cannot iterate over
        counts = [
            StageCounts(getattr(stage, self._counter_name)(), stage.numCompleteTasks() / max(stage.numTasks(), 1))
            for stage in map(stages.apply, range(stages.size()))
        ]
        return max((count for count in counts if count.rows), default=StageCounts())
