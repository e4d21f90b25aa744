"""docker-compose.yaml: valid, healthy before it is used, and without a secret in it."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pyspark
import pytest
import yaml

from demo.stack import COMPONENTS, AirflowStack
from homing import open_store
from homing.delivery import open_pipeline_stores
from homing.spark.submit.master import refuse_unreachable

REPOSITORY = Path(__file__).parents[2]
SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text())
TEXT = (REPOSITORY / "docker-compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

SECRET = re.compile(r"password|secret|fernet_key|token", re.IGNORECASE)
REQUIRED_VARIABLE = re.compile(r"\$\{(\w+):\?set \1 in \.env\}")


def given(value: str) -> str:
    """The value with every variable set to x."""
    return REQUIRED_VARIABLE.sub("x", value)


PARSE = """
import json, sys
from airflow.cli.cli_parser import get_parser
for command in json.loads(sys.argv[1]):
    get_parser().parse_args(command)
"""


def test_the_file_is_valid_by_the_compose_specification() -> None:
    jsonschema.validate(COMPOSE, SCHEMA)


def test_the_schema_refuses_what_compose_would_refuse() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"scheduler": {"imaeg": "homing"}}}, SCHEMA)


@pytest.mark.parametrize("name", SERVICES)
def test_every_secret_is_a_required_variable(name: str) -> None:
    environment = SERVICES[name].get("environment", {})
    for variable, value in environment.items():
        if SECRET.search(variable):
            assert REQUIRED_VARIABLE.fullmatch(value), variable


def test_no_url_holds_a_literal_password() -> None:
    passwords = re.findall(r"://[^/\s:@]+:(\$\{[^}]*\}|[^@\s]*)@", TEXT)

    assert passwords
    assert all(REQUIRED_VARIABLE.fullmatch(password) for password in passwords)


def test_no_variable_has_a_default() -> None:
    variables = re.findall(r"\$\{[^}]*\}", TEXT)

    assert variables
    assert all(REQUIRED_VARIABLE.fullmatch(variable) for variable in variables)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_until_what_it_needs_is_ready(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        condition = how["condition"]
        assert condition in {"service_healthy", "service_completed_successfully"}
        if condition == "service_healthy":
            assert "healthcheck" in SERVICES[needed]


#: What ends when it is done.
ONE_SHOT = {"airflow-init", "rabbitmq-definitions"}


@pytest.mark.parametrize("name", sorted(set(SERVICES) - ONE_SHOT))
def test_every_service_that_stays_up_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]


def test_every_volume_in_use_is_declared() -> None:
    mounts = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])]

    assert {mount for mount in mounts if not mount.startswith(".")} == set(COMPOSE["volumes"])


def test_everything_of_ours_is_one_image_and_spark_has_two_workers() -> None:
    ours = {name: service for name, service in SERVICES.items() if "build" in service}

    assert {service["image"] for service in ours.values()} == {ours["scheduler"]["image"]}
    assert {*COMPONENTS, "spark-master", "spark-worker"} <= set(ours)
    assert ours["spark-worker"]["deploy"]["replicas"] >= 2


def test_what_is_published_is_published_to_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_privileges_and_cannot_gain_any(name: str) -> None:
    service = SERVICES[name]

    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "/tmp" in {mount.partition(":")[0] for mount in service["tmpfs"]}  # noqa: S108
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"]), "neither root nor its group"
    for forbidden in ("privileged", "cap_add", "devices", "pid", "ipc", "userns_mode", "volumes_from"):
        assert forbidden not in service
    assert "docker.sock" not in str(service)


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_mounts_of_this_repository_it_cannot_change(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source, _, rest = mount.partition(":")
        if source.startswith("."):
            assert rest.endswith(":ro"), mount
            assert (REPOSITORY / source).exists(), mount


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_named_by_its_version(name: str) -> None:
    assert re.search(r"@sha256:[0-9a-f]{64}$|:\d+\.\d+[\w.-]*$", SERVICES[name]["image"])


def test_a_service_reaches_only_what_it_needs() -> None:
    reached = {name: set(service.get("networks", ())) for name, service in SERVICES.items()}

    assert reached.pop("rabbitmq-definitions") == set()
    assert SERVICES["rabbitmq-definitions"]["network_mode"] == "none"
    assert all(reached.values()), "without a list a service is in the default network, with everything"
    assert set().union(*reached.values()) == set(COMPOSE["networks"])
    inside = {name for name, network in COMPOSE["networks"].items() if network and network["internal"]}
    assert inside == {"metadata", "stores", "broker"}
    assert [name for name in reached if "edge" in reached[name]] == ["api-server"]
    assert {name for name in reached if "metadata" in reached[name]} == {"postgres", "airflow-init", *COMPONENTS}
    assert {name for name in reached if "broker" in reached[name]} == {"rabbitmq", *COMPONENTS}
    # Executors run the authors' code: they see the stores and Spark, and no broker, metadata or UI.
    assert reached["spark-worker"] == reached["spark-master"] == {"spark"}
    assert {name for name in reached if "spark" in reached[name]} == {
        "scheduler", "spark-master", "spark-worker", "stores",
    }  # fmt: skip
    for name, service in SERVICES.items():
        for needed in service.get("depends_on", {}):
            shared = reached.get(name, set()) & reached.get(needed, set())
            assert shared or needed in ONE_SHOT, f"{name} cannot reach {needed}"


def test_no_service_connects_as_who_administers() -> None:
    environment = given(str(SERVICES["scheduler"]["environment"]))

    for name in ("postgres", "stores"):
        database = SERVICES[name]["environment"]
        assert database["POSTGRES_USER"] == "postgres" != database["APP_ROLE"]
        assert f"//{database['APP_ROLE']}:" in environment
        assert "./deploy/roles.sql:/docker-entrypoint-initdb.d/roles.sql:ro" in SERVICES[name]["volumes"]
    assert "//postgres:" not in environment
    assert "POSTGRES_ADMIN_PASSWORD" not in str(SERVICES["scheduler"])
    broker = SERVICES["rabbitmq"]
    assert "environment" not in broker, "RABBITMQ_DEFAULT_USER would be an administrator"
    assert SERVICES["rabbitmq-definitions"]["environment"]["RABBITMQ_USER"] == "homing"


def test_spark_is_told_its_secret_by_the_environment_alone() -> None:
    settings = dict(
        line.split()
        for line in (REPOSITORY / "deploy/spark/spark-defaults.conf").read_text().splitlines()
        if line and not line.startswith("#")
    )

    for name in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert settings[name] == "true"
    for name in ("scheduler", "spark-master", "spark-worker"):
        environment = SERVICES[name]["environment"]
        assert REQUIRED_VARIABLE.fullmatch(environment["_SPARK_AUTH_SECRET"])
        assert f"./deploy/spark:{environment['SPARK_CONF_DIR']}:ro" in SERVICES[name]["volumes"]
    assert "SPARK_SECRET" not in str([service.get("command") for service in SERVICES.values()])


def test_airflow_runs_as_in_the_tests_without_docker(tmp_path: Path) -> None:
    stack = AirflowStack(tmp_path, REPOSITORY / "dags", sql_alchemy_conn="postgresql://airflow:x@postgres/airflow")
    tested, here = stack.environment(), SERVICES["scheduler"]["environment"]

    assert {name: SERVICES[name]["command"] for name in COMPONENTS} == {name: ["airflow", name] for name in COMPONENTS}
    settings = {name for name in here if name.startswith("AIRFLOW__")} - {"AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK"}
    assert settings <= tested.keys()
    same = ("CORE__EXECUTOR", "CORE__LOAD_EXAMPLES", "CORE__PARALLELISM")
    assert {name: here[f"AIRFLOW__{name}"] for name in same} == {name: tested[f"AIRFLOW__{name}"] for name in same}
    for name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"):
        assert given(here[name]) == tested[name]


def test_spark_runs_as_in_the_tests_without_docker() -> None:
    daemons = {name: SERVICES[name]["command"] for name in ("spark-master", "spark-worker")}
    tested = (REPOSITORY / "tests/spark/test_cluster.py").read_text()
    (core,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    classes = zipfile.ZipFile(core).namelist()

    for program, main, *arguments in daemons.values():
        assert program == "spark-class"
        assert main.removeprefix("org.apache.spark.deploy.") in tested
        assert f"{main.replace('.', '/')}.class" in classes
        assert {part for part in arguments if part.startswith("-")} <= {"--host", "--port", "--webui-port", "-d"}
    connection = json.loads(SERVICES["scheduler"]["environment"]["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert f"{connection['host']}:{connection['port']}" == daemons["spark-worker"][-1]


def test_the_stores_are_such_that_executors_on_other_machines_can_open_them() -> None:
    environment = SERVICES["scheduler"]["environment"]
    connections = [
        json.loads(given(environment[f"AIRFLOW_CONN_ORDERS_{name}"])) for name in ("STORE", "DEAD_LETTERS", "SOURCE")
    ]
    assert {connection["conn_type"] for connection in connections} == {"homing"}
    *urls, source_url = (connection["password"] for connection in connections)

    refuse_unreachable("spark://spark-master:7077", *urls)
    with open_pipeline_stores(*urls) as stores, open_store(source_url) as source:
        assert [each.name for each in (stores.store, stores.dead_letters, source)] == [
            "orders",
            "orders_dead",
            "orders",
        ]
    for url in (*urls, source_url):
        assert urlsplit(url).hostname in SERVICES


def test_every_variable_of_the_example_is_one_that_its_dags_read() -> None:
    code = "".join(path.read_text() for path in (REPOSITORY / "dags").glob("*.py"))
    names = {name for service in SERVICES.values() for name in service.get("environment", {}) if "ORDERS" in name}

    assert names
    assert {name for name in names if f'"{name}"' not in code} == set()


def test_executors_share_what_they_write_and_are_told_no_secret() -> None:
    worker, scheduler = SERVICES["spark-worker"], SERVICES["scheduler"]

    assert set(worker["volumes"]) <= set(scheduler["volumes"])
    # Spark's own is what its processes know each other by.
    assert {name for name, value in worker["environment"].items() if "${" in value} == {"_SPARK_AUTH_SECRET"}


def test_airflow_knows_every_command(tmp_path: Path) -> None:
    ran = [service["command"] for service in SERVICES.values() if "command" in service]
    checks = [service["healthcheck"]["test"][1:] for service in SERVICES.values() if "healthcheck" in service]
    commands = [command[1:] for command in ran + checks if command[0] == "airflow"]

    parsed = subprocess.run(
        [sys.executable, "-c", PARSE, json.dumps(commands)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )

    assert len(commands) >= len([command for command in ran if command[0] == "airflow"]) >= len(COMPONENTS)
    assert parsed.returncode == 0, parsed.stderr
