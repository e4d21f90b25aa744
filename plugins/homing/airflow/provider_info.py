"""What Airflow is told about this provider. Imported on every `airflow` call: keep it light."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "homing",
        "name": "Homing",
        "description": "Guaranteed message delivery for people who run Airflow and Spark.",
        "connection-types": [
            {
                "connection-type": "homing",
                "hook-class-name": "homing.airflow.hook.StoreHook",
                "hook-name": "Homing store",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "port", "extra"],
                    # The URL may hold a password, and Airflow keeps this field, and only it, secret everywhere.
                    "relabeling": {"password": "Store URL"},
                    "placeholders": {"password": "sqlite:////var/lib/homing/inbox.db?store=orders"},
                },
            }
        ],
    }
