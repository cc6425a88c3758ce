"""Expose the data source to Spark, which imports each top-level module `pyspark_*` and registers its `DefaultSource`.

If the import of one such module fails, Spark skips all of them. So with a PySpark that lacks Arrow writers, this module
raises no error and has no `DefaultSource`; `bruce_mp.spark.register` raises the error with the reason.
"""

__all__: list[str] = []

try:
    from bruce_mp.spark.source import BruceDataSource as DefaultSource
except ImportError:
    pass
else:
    __all__ += ["DefaultSource"]
