"""Python imports this when it starts. In the processes that fork Spark's workers it imports what every worker imports:
each step of a data source is a worker of its own, in which importing takes longer than anything that a test does.
"""

import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    import gc
    import importlib
    import os

    # Spark's own modules come from an archive of sources, compiled at each start; the installed ones are the same.
    sys.path[:] = [path for path in sys.path if not path.endswith(("pyspark.zip", "-src.zip"))]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy starts threads, which a fork would not copy
    worker = sys.orig_argv[-1]
    for module in (worker, "pyarrow.compute", "messagehub.spark.source"):
        importlib.import_module(module)
    if worker == "pyspark.worker":  # runs tasks, which import it with their first batch of rows
        importlib.import_module("pandas")
    gc.collect()
    gc.freeze()
