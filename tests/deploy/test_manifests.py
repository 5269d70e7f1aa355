"""What is in deploy/ is accepted by the tools that will read it: `make deploy-check`."""

import re
import subprocess
from importlib import resources
from pathlib import Path

import pyspark
import pytest
import yaml
from servers import COMMAND, tool

from sendlater.config import Settings
from sendlater.spark.session import slots

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make deploy-check")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GO_TOOLS = ROOT / ".venv" / "deploy-tools"
UNIT = DEPLOY / "systemd" / "sendlater.service"
EXPOSURE_MAX = 40
"""Tenths, as systemd-analyze counts: up to here it says OK."""


def run(*command, **options):
    """What a tool says; fails unless it is content."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_dockerfile_has_no_known_fault():
    hadolint = Path(COMMAND).with_name("hadolint")
    run(hadolint, "--failure-threshold", "style", DEPLOY / "Dockerfile")


@pytest.fixture(scope="module")
def rendered():
    text = run(GO_TOOLS / "kustomize", "build", DEPLOY / "kubernetes")
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def versions():
    """The versions of Kubernetes whose schemas the package brings, from the one we support."""
    schemas = resources.files(kubernetes_validate) / "kubernetes-json-schema"
    names = {path.name.split("-")[0] for path in schemas.iterdir() if path.name.startswith("v1.")}
    return sorted(
        (n.removeprefix("v").rpartition(".")[0] for n in names),
        key=lambda v: int(v.split(".")[1]),
    )


@pytest.mark.parametrize("version", [v for v in versions() if int(v.split(".")[1]) >= 30])
def test_every_manifest_fits_the_schemas_of_kubernetes(rendered, version):
    for manifest in rendered.values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_misspelled_field_does_not_fit(rendered):
    """So that the test above can fail."""
    manifest = rendered["Deployment", "sendlater"]
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 60

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, versions()[-1], strict=True)


def test_every_selector_means_the_pods_of_the_service(rendered):
    """A policy or budget that selects other pods, or none, is silent about it."""
    specs = {kind: one["spec"] for (kind, _), one in rendered.items() if "spec" in one}
    labels = specs["Deployment"]["template"]["metadata"]["labels"]

    assert specs["Deployment"]["selector"] == {"matchLabels": labels}
    assert specs["PodDisruptionBudget"]["selector"] == {"matchLabels": labels}
    assert specs["NetworkPolicy"]["podSelector"] == {"matchLabels": labels}
    assert specs["Service"]["selector"] == labels


def test_changed_settings_have_another_name_so_that_pods_restart(rendered):
    (name,) = (name for kind, name in rendered if kind == "ConfigMap")
    volumes = rendered["Deployment", "sendlater"]["spec"]["template"]["spec"]["volumes"]

    assert name.startswith("sendlater-settings-")
    assert {"configMap": {"name": name}, "name": "settings"} in volumes


@pytest.fixture
def submitted():
    """What the Spark operator submits."""
    return yaml.safe_load((DEPLOY / "spark-operator" / "spark-application.yaml").read_text())[
        "spec"
    ]


def test_the_driver_of_the_spark_operator_is_a_pod(submitted):
    """The operator's own schema is in no registry; what it hands on to Kubernetes has one."""
    driver = submitted["driver"]
    taken_over = {name: driver[name] for name in ("env", "lifecycle", "ports", "volumeMounts")}
    container = {"name": "driver", "image": submitted["image"], **taken_over}
    spec = {
        "containers": [container],
        "volumes": submitted["volumes"],
        "serviceAccountName": driver["serviceAccount"],
        "terminationGracePeriodSeconds": driver["terminationGracePeriodSeconds"],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver"}, "spec": spec}
    kubernetes_validate.validate(pod, versions()[-1], strict=True)


def test_each_executor_of_the_spark_operator_has_a_slot_for_every_task(submitted):
    assert submitted["executor"]["cores"] >= slots(Settings(bootstrap_servers="kafka:9092"))
    assert submitted["sparkVersion"] == pyspark.__version__


@pytest.mark.parametrize("python", ["python3", "/opt/venv/bin/python3.11"])
def test_the_driver_is_told_to_end_before_its_jvm(submitted, python):
    """The pattern means the service, and neither the JVM nor the shell that looks for it."""
    [_, _, script] = submitted["driver"]["lifecycle"]["preStop"]["exec"]["command"]
    [pattern] = set(re.findall(r"-f '(.*?)'", script))
    file = submitted["mainApplicationFile"].removeprefix("local://")

    assert re.search(pattern, f"{python} {file} serve")
    assert not re.search(pattern, f"/usr/bin/java -cp /opt/spark/jars/* SparkSubmit {file} serve")
    assert not re.search(pattern, f"/bin/sh -c {script}")


def test_compose_reads_its_file():
    assert "sendlater_default" in run(GO_TOOLS / "cmd", DEPLOY / "compose.yaml")


def test_systemd_reads_the_unit_and_finds_it_confined(tmp_path):
    there = tmp_path / UNIT.name
    there.write_text(UNIT.read_text().replace("/opt/sendlater/.venv/bin/sendlater", COMMAND))
    analyze = tool("systemd-analyze")

    run(analyze, "verify", "--man=no", there)
    run(analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", there)


def test_prometheus_reads_its_settings():
    run(tool("promtool"), "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
