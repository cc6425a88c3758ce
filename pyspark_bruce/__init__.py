"""Expose the data source to Spark, which imports each top-level module `pyspark_*` and registers its `DefaultSource`.

If the import of one such module fails, Spark skips all of them. So with a PySpark below 4.1, which cannot write Arrow
batches, this module has no `DefaultSource` but raises no error; `bruce_mp.spark.register` raises the error.
"""

__all__: list[str] = []

try:
    from bruce_mp.spark.source import BruceDataSource as DefaultSource
except ImportError:
    pass
else:
    __all__ += ["DefaultSource"]
