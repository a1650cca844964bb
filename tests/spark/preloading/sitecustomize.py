"""Python imports this when it starts. In the processes that fork Spark's workers it imports what every worker imports:
each step of a data source is a worker of its own, in which importing takes longer than anything that a test does.
"""

import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    import gc
    import importlib
    import os

    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy starts threads, which a fork would not copy
    for module in (sys.orig_argv[-1], "pyarrow.compute", "messagehub.spark.source"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
