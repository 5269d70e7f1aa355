"""Alert rules fire when they should; dashboard, rules and reference know the metrics there are."""

import json
import re
import subprocess
from pathlib import Path

import yaml
from servers import tool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "sendlater.rules.yml"
RULE_TESTS = RULES.with_name("sendlater.rules.test.yml")
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


def test_rules_ask_for_metrics_that_exist():
    rules = yaml.safe_load(RULES.read_text())
    asked = used(" ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"]))
    assert asked <= documented()


def test_the_dashboard_shows_every_metric_there_is_and_no_other():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    exprs = [target["expr"] for panel in panels for target in panel["targets"]]
    assert used(" ".join(exprs)) == documented()
    labels = set(re.findall(r"\{\{(\w+)\}\}", DASHBOARD.read_text()))
    assert labels <= {"instance", *re.findall(r"`sendlater_\w+\{(\w+)\}`", REFERENCE.read_text())}
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in panels]
    assert len(set(places)) == len(places)


def test_every_alert_is_tested_both_ways():
    """Once it must fire, and once, on the same numbers, it must not."""
    rules = yaml.safe_load(RULES.read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    (case,) = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    told = {(one["alertname"], bool(one["exp_alerts"])) for one in case["alert_rule_test"]}
    assert told == {(name, fires) for name in alerts for fires in (True, False)}


def test_every_alert_is_explained():
    rules = yaml.safe_load(RULES.read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(re.findall(r"^\| `(Sendlater\w+)", REFERENCE.read_text(), re.MULTILINE)) == alerts
