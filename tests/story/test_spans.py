"""Spans of the service: what OTEL_* in its environment says reaches Spark's own processes."""

import pytest
from installation import Installation
from servers import on_cluster, wait_until

TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traced_message_has_spans_of_its_way_through_spark(kafka, redis_url, tmp_path):
    if on_cluster():
        pytest.skip("executors have an environment, and a console, of their own")
    here = Installation(kafka, redis_url, tmp_path)
    here.service.environment |= {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with here.service.start(), here.readers[here.target]:
        here.schedule(key="plain")
        here.schedule(key="traced", headers=[("traceparent", TRACEPARENT)])
        assert dict(here.arrival(b"traced").headers())["traceparent"] == TRACEPARENT
        for operation in ("park", "deliver"):
            told = f'"name": "{operation} {here.target}"'
            wait_until(lambda told=told: told in here.service.log.read_text(), told)
        log = here.service.log.read_text()
    assert log.count("0x0af7651916cd43dd8448eb211c80319c") == 2
    assert '"messaging.message.id": "plain"' not in log
