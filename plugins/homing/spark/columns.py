"""The columns messages travel in, as Spark writes their types."""

from __future__ import annotations

import pyarrow as pa

from homing.delivery.arrow.columns import STORED

_NAMES = {pa.int64(): "bigint", pa.int32(): "int", pa.string(): "string"}

STORED_DDL = ", ".join(f"{field.name} {_NAMES[field.type]}" for field in STORED)
PROCESSED_DDL = f"{STORED_DDL}, properties string"
TALLY_DDL = "state string, messages bigint"
