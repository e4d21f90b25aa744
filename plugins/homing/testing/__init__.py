"""For authors of chains: chains and DAGs in a test. For authors of stores there is `homing.testing.conformance`.

    trial = try_chain(chain, [{"number": 1, "paid": True}, {"number": 2, "paid": False}])
    assert trial.delivered == {"crm": [{"number": 1, "paid": True}]}

It needs no test framework, and of Airflow and Spark only what the tested chain or DAG needs. See docs/testing.md.
"""

from homing.testing.dags import books_of, prepare_airflow, run_dag
from homing.testing.trial import Delivery, Dropped, Failed, Trial, try_chain

__all__ = [
    "Delivery",
    "Dropped",
    "Failed",
    "Trial",
    "books_of",
    "prepare_airflow",
    "run_dag",
    "try_chain",
]
