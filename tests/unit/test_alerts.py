"""Alert rules fire when they should; dashboard, rules and reference know the metrics there are."""

import json
import re
import subprocess
from pathlib import Path

import yaml
from servers import tool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "sendlater.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "sendlater.json"
REFERENCE = ROOT / "docs" / "reference" / "metrics.md"
SOURCE = ROOT / "src" / "sendlater" / "metrics.py"


def documented():
    return set(re.findall(r"^\| `(sendlater_\w+)", REFERENCE.read_text(), re.MULTILINE))


def used(text):
    names = set(re.findall(r"\bsendlater_\w+", text))
    return {re.sub("_(bucket|sum|count)$", "", name) for name in names}


def test_rules_fire_when_they_should():
    """With Prometheus' own tool, which CI installs."""
    done = subprocess.run(
        [tool("promtool"), "test", "rules", "sendlater.rules.test.yml"],
        cwd=RULES.parent,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_and_rules_ask_for_metrics_that_exist():
    rules = yaml.safe_load(RULES.read_text())
    asked = used(" ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"]))
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        asked |= used(" ".join(target["expr"] for target in panel["targets"]))
    assert asked <= documented()


def test_every_alert_is_explained():
    rules = yaml.safe_load(RULES.read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(re.findall(r"^\| `(Sendlater\w+)", REFERENCE.read_text(), re.MULTILINE)) == alerts
