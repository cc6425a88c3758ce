"""The object that Spark imports: it imports each top-level module named `pyspark_*` and registers its `DefaultSource`.

One module that fails to import makes Spark skip all of them, so this one never does: without a PySpark that has Arrow
writers there is no `DefaultSource`, and `bruce_mp.spark.register` says why.
"""

__all__: list[str] = []

try:
    from bruce_mp.spark.source import BruceDataSource as DefaultSource
except ImportError:
    pass
else:
    __all__ += ["DefaultSource"]
