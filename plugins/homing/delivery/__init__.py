"""The delivery protocol: what the Spark jobs and the Airflow tasks of one pipeline agree on.

    store ──claim──▶ batch ──ledger──▶ settle ─┬─ complete ──▶ acknowledged
                                               ├─ failed ────▶ failure store ──replay──▶ acknowledged
                                               │                                  └────▶ dead-letter store
                                               └─ untouched ─▶ released, claimed again

The next durable copy always exists before this one is acknowledged, and every step may be done twice.
"""

from homing.delivery.audit import AuditReport, run_audit
from homing.delivery.batch import Batch
from homing.delivery.failures import Failure, Selection
from homing.delivery.intake import take_in
from homing.delivery.settlement import Settlement
from homing.delivery.stores import PipelineStores, open_pipeline_stores

__all__ = [
    "AuditReport",
    "Batch",
    "Failure",
    "PipelineStores",
    "Selection",
    "Settlement",
    "open_pipeline_stores",
    "run_audit",
    "take_in",
]
