"""The Airflow plugin. Loaded by every Airflow process, each task's included: keep it light."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from homing.airflow import task_notes


class LazyApp:
    """An ASGI application that is imported when it is first asked for: FastAPI would cost every task seconds."""

    def __init__(self, module: str) -> None:
        self._module = module

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await import_module(self._module).app(scope, receive, send)


class HomingPlugin(AirflowPlugin):
    """The page of a task's messages, and the tasks' notes."""

    name = "homing"
    fastapi_apps = [  # noqa: RUF012 - a field of Airflow's
        {"name": "Homing", "app": LazyApp("homing.airflow.plugin.messages_page"), "url_prefix": "/homing"}
    ]
    listeners = [task_notes]  # noqa: RUF012
