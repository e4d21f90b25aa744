"""Starting Spark jobs: the code, the secrets and the settings they need, for every kind of Spark.

Whoever starts jobs knows this part of `homing.spark` and no other, and needs no pyspark for it.
"""
