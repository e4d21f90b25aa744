"""One real Airflow for the whole test run: scheduler, triggerer, DAG processor and API server on the worked example."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.pipeline import OrdersPipeline


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrdersPipeline]:
    orders = OrdersPipeline(tmp_path_factory.mktemp("orders"))
    with orders.airflow:
        yield orders
