"""A driver that lets Spark speculate, which our applications do not: processes and delivers the batch `run`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from homing.delivery import Batch, open_pipeline_stores
from homing.pipeline import load_chain
from homing.spark.engine import Engine, Pipeline
from homing.spark.jobs import DEAD_LETTER_STORE, STORE


def main(work_dir: str) -> None:
    pipeline = Pipeline("tried_chain:chain", STORE, DEAD_LETTER_STORE)
    spark = SparkSession.builder.getOrCreate()
    with open_pipeline_stores(STORE, DEAD_LETTER_STORE) as stores:
        batch = Batch(stores, "run", ["shop"], chain="tried")

        def engine(step: str) -> Engine:
            fence = stores.ledger.open_step("run", step, 600)
            return Engine(spark, pipeline, load_chain(pipeline.chain), stores, batch, fence)

        assert engine("process").process(work_dir) == batch.held()[0].lease.size
        engine("deliver.shop").deliver("shop", work_dir)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
