"""What Airflow is told about this provider. Imported on every `airflow` call: keep it light."""

from __future__ import annotations

from typing import Any

from homing.airflow.hooks.connection import SCHEMES


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "homing",
        "name": "Homing",
        "description": "Guaranteed message delivery for people who run Airflow and Spark.",
        "cli": ["homing.airflow.commands.get_cli_commands"],
        "extra-links": [f"homing.airflow.links.{name}" for name in ("MessagesLink", "ReplayLink", "SparkLink")],
        "config": {
            "homing": {
                "description": "Guaranteed message delivery",
                "options": {
                    "spark_history_url": {
                        "description": "Where Spark's history server is, for the links of tasks whose job has ended",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "http://spark-history:18080",
                        "default": "",
                    }
                },
            }
        },
        "queues": ["homing.airflow.triggers.asset.StoreQueueProvider"],
        "connection-types": [
            {
                "connection-type": "homing",
                "hook-class-name": "homing.airflow.hooks.store.StoreHook",
                "hook-name": "Homing store",
                "ui-field-behaviour": {
                    "hidden-fields": ["extra"],
                    "relabeling": {
                        # Airflow keeps this field, and only it, secret everywhere; a URL may hold a password.
                        "password": "Password, or the whole store URL",
                        "schema": "Database, file or virtual host",
                    },
                    "placeholders": {"password": "sqlite:////var/lib/homing/inbox.db?store=orders", "port": "5432"},
                },
                "conn-fields": {
                    "scheme": {
                        "label": "Kind of store",
                        "description": "Leave empty when the password field holds the whole URL",
                        "schema": {"type": ["string", "null"], "enum": [*SCHEMES, None], "default": None},
                    },
                    "store": {
                        "label": "Name of the store",
                        "description": "The table or queue, such as orders",
                        "schema": {"type": ["string", "null"]},
                    },
                    "options": {
                        "label": "Options",
                        "description": "As in the store's URL: ack_wait=30&max_deliveries=5",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            }
        ],
    }
