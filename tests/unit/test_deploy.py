"""deploy/ agrees with the settings and with itself; what its tools say is in tests/deploy."""

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from sendlater.config import Settings, load
from sendlater.server.app import address_of
from sendlater.server.routes import health

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUSTOMIZATION = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
POD = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text())["spec"]["template"][
    "spec"
]
(CONTAINER,) = POD["containers"]
UNIT = (DEPLOY / "systemd" / "sendlater.service").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No variable and no file of the machine that runs the tests."""
    for name in [name for name in os.environ if name.upper().startswith("SENDLATER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_the_settings_for_kubernetes_are_accepted_with_their_secrets(monkeypatch, tmp_path):
    mounted = {one["name"]: one["mountPath"] for one in CONTAINER["volumeMounts"]}
    environment = {one["name"]: one["value"] for one in CONTAINER["env"]}
    assert environment == {
        "SENDLATER_CONFIG": f"{mounted['settings']}/sendlater.toml",
        "SENDLATER_SECRETS": mounted["secrets"],
    }
    (tmp_path / "redis").write_text("redis://:secret@redis:6379/0")
    monkeypatch.setenv("SENDLATER_CONFIG", str(DEPLOY / "kubernetes" / "sendlater.toml"))
    monkeypatch.setenv("SENDLATER_SECRETS", str(tmp_path))
    settings = load()

    assert settings.stands_by
    assert settings.http_tokens.is_relative_to(mounted["tokens"])
    ports = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}
    assert address_of(settings) == ("0.0.0.0", ports["http"])
    assert settings.metrics_addr == f"0.0.0.0:{ports['metrics']}"


def test_the_settings_in_compose_are_accepted(monkeypatch):
    service = COMPOSE["services"]["sendlater"]
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    settings = load()

    assert address_of(settings) == ("0.0.0.0", 8080)
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    assert settings.http_tokens == Path("/run/secrets", *COMPOSE["secrets"])


def test_a_supervisor_waits_longer_than_a_graceful_stop_takes():
    waits_s = [
        POD["terminationGracePeriodSeconds"],
        int(COMPOSE["services"]["sendlater"]["stop_grace_period"].removesuffix("s")),
        int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[1]),
    ]

    assert min(waits_s) * 1_000 > Settings.model_fields["stop_timeout_ms"].default


def test_the_signal_to_stop_goes_to_the_service_alone():
    """Its JVM and its workers must live until what they have claimed is delivered."""
    assert "KillMode=mixed" in UNIT.splitlines()
    assert 'ENTRYPOINT ["tini", "--", "sendlater"]' in DOCKERFILE.splitlines()


def test_what_the_image_writes_to_is_mounted_and_the_rest_is_read_only():
    service = COMPOSE["services"]["sendlater"]
    (data,) = re.findall(r"SENDLATER_DATA_DIR=(\S+)", DOCKERFILE)
    writable = {one["mountPath"] for one in CONTAINER["volumeMounts"] if "readOnly" not in one}

    assert writable == {one.partition(":")[0] for one in service["tmpfs"]} == {data, "/tmp"}
    assert service["read_only"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    (user,) = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, re.MULTILINE)
    assert POD["securityContext"]["runAsUser"] == int(user)


def test_probes_ask_for_what_rest_answers():
    paths = {route.path for route in health.router.routes}

    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[kind]["httpGet"]["path"] in paths, kind


def test_versions_are_pinned_and_are_ours():
    bases = re.findall(r"^FROM (\S+)(?: AS \S+)?$", DOCKERFILE, re.MULTILINE)
    images = [one["image"] for one in COMPOSE["services"].values()]

    assert re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", bases[0])
    assert set(bases[1:]) == {"runtime"}
    assert all(re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+(-\w+)?", image) for image in images), images
    assert f"sendlater:{VERSION}" in images
    assert KUSTOMIZATION["images"] == [{"name": CONTAINER["image"], "newTag": VERSION}]


def test_the_context_of_the_image_holds_what_is_copied_and_no_more():
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    admitted = re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.M)

    assert sorted(" ".join(copied).split()) == sorted(admitted)
