"""How a local Spark is made to run tasks."""

import pytest

from sendlater.config import Inbox, Settings
from sendlater.spark.session import local_master


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
