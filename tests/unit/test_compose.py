"""docker-compose.yaml: valid, healthy before it is used, and without a secret in it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text())
TEXT = (REPOSITORY / "docker-compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

SECRET = re.compile(r"password|secret|fernet_key|token", re.IGNORECASE)
REQUIRED_VARIABLE = re.compile(r"\$\{(\w+):\?set \1 in \.env\}")

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


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"airflow-init"}))
def test_every_service_that_stays_up_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]


def test_every_volume_in_use_is_declared() -> None:
    mounts = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])]

    assert {mount for mount in mounts if not mount.startswith(".")} == set(COMPOSE["volumes"])


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

    assert len(commands) >= len(ran)
    assert parsed.returncode == 0, parsed.stderr
