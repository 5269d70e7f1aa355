"""How a local Spark is made to run tasks."""

import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from sendlater.config import Inbox, Settings
from sendlater.spark.datasource.workers import forget_jars
from sendlater.spark.session import enforced, local_master


@pytest.mark.parametrize(
    ("told", "attempts"),
    [
        ({"bootstrap_servers": "here:9092"}, 2),
        ({"bootstrap_servers": "here:9092", "pending": "buckets"}, 1),
        ({}, 1),
    ],
)
def test_a_task_is_tried_again_only_where_it_looks_up_what_has_arrived(
    told: dict[str, str], attempts: int
) -> None:
    settings = Settings(inboxes=(Inbox(topic="in"),), shards=2, **told)  # type: ignore[arg-type]
    assert local_master(settings).endswith(f",{attempts}]")
    on_a_cluster = enforced(settings).get("spark.task.maxFailures")
    assert on_a_cluster == ("1" if attempts == 1 else None)


def test_a_worker_looks_for_no_module_in_a_jar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark puts its own one on the path of each: thousands of names, listed by every task."""
    jar = tmp_path / "spark-core.jar"
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("only_in_the_jar.py", "")
    monkeypatch.setattr(sys, "path", [str(jar), *sys.path])
    assert find_spec("only_in_the_jar") is not None
    forget_jars()
    assert find_spec("only_in_the_jar") is None
    assert str(jar) not in sys.path_importer_cache
