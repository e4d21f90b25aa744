"""The Airflow plugin. Loaded by every Airflow process, each task's included: keep it light."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class HomingPlugin(AirflowPlugin):
    """Makes Homing show up among the plugins."""

    name = "homing"
