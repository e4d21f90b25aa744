"""Starting Spark jobs: the code, the secrets and the settings they need, for every kind of Spark.

The code that starts jobs uses this part of `homing.spark` only, and needs no pyspark for it.
"""
