"""Makes Airflow's database with the DAGs of `dags` in it and, for Flask-AppBuilder, its roles and users.

Run in the environment of the API server that is tested, with {user: [role, password]} on standard input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from airflow.configuration import conf
from airflow.utils.db import initdb

_READ_ONE = [("can_read", "DAG:own"), ("can_read", "DAG:own_replay")]
_READ_PARTS = [("can_read", name) for name in ("XComs", "Task Instances", "DAG Runs")]
#: The roles that Flask-AppBuilder does not bring: what each may do.
ROLES: Mapping[str, list[tuple[str, str]]] = {
    "ReaderOfOwn": [*_READ_ONE, *_READ_PARTS],
    "WriterOfOwn": [
        *_READ_ONE,
        *_READ_PARTS,
        ("can_edit", "DAG:own"),
        ("can_create", "XComs"),
        ("can_edit", "XComs"),
    ],
    "Nothing": [],
}


def serialize_dags() -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    for bundle in manager.get_all_dag_bundles():
        bundle.initialize()
        bag = BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        assert not bag.import_errors, bag.import_errors
        sync_bag_to_db(bag, bundle.name, bundle_version=None)


def add_users(users: Mapping[str, tuple[str, str]]) -> None:
    from airflow.providers.fab.auth_manager.cli_commands.utils import get_application_builder

    with get_application_builder() as builder:
        security: Any = builder.sm
        security.sync_roles()
        for name, allowed in ROLES.items():
            role = security.add_role(name)
            for action, resource in allowed:
                security.add_permission_to_role(role, security.create_permission(action, resource))
        for name, (role_name, password) in users.items():
            made = security.add_user(
                name, name, name, f"{name}@localhost", security.find_role(role_name), password=password
            )
            assert made, name


if __name__ == "__main__":
    initdb()
    serialize_dags()
    if "fab" in conf.get("core", "auth_manager"):
        add_users(json.load(sys.stdin))
