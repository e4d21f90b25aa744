"""Where a task leads: to its messages, to its Spark job, to the replay of what failed. No link holds a secret."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode, urljoin

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf


class MessagesLink(BaseOperatorLink):
    """From a task to what became of the messages of its batch: a page that the API server shows."""

    name = "Messages"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        if operator.pipeline is None:
            return ""  # a sensor of a store alone: the tasks after it tell what became of the messages
        task = {name: getattr(ti_key, name) for name in ("dag_id", "run_id", "task_id", "map_index")}
        return _page(f"homing/messages?{urlencode(task)}")


class SparkLink(BaseOperatorLink):
    """From a task to its Spark job: to Spark's own UI while it runs, to the history server, if there is one, after."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        application, history = operator.spark_application, conf.get("homing", "spark_history_url", fallback="")
        # Spark's own UI has ended along with the job: better no link than one to nowhere.
        return f"{history.rstrip('/')}/history/{quote(application, safe='')}/" if application and history else ""


class ReplayLink(BaseOperatorLink):
    """From a settlement to the replay of what failed."""

    name = "Replay"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return (
            _page(f"dags/{quote(operator.replay_dag_id, safe='')}/runs/{quote(operator.replay_run, safe='')}")
            if operator.replay_run
            else ""
        )


def _page(path: str) -> str:
    return urljoin(f"{conf.get('api', 'base_url', fallback='/').rstrip('/')}/", path)
