"""The REST interface does what its OpenAPI document says, whatever is asked of it."""

import os
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import msgspec
import pytest

from sendlater.config import Settings
from sendlater.server import json_shapes, selections
from sendlater.server.process import HttpProcess
from sendlater.server.schema_parts import ref
from sendlater.server.schemas import SCHEMAS

SCHEMATHESIS = str(Path(sys.executable).parent / "schemathesis")
CONFIG = str(Path(__file__).with_name("schemathesis.toml"))
EXAMPLES_MAX = int(os.environ.get("REST_EXAMPLES", "12"))
"""For each operation and phase; REST_EXAMPLES says another number, such as 300."""
HOOKS = {
    "SCHEMATHESIS_HOOKS": "schemathesis_ndjson",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
}


BODIES = {
    "NewSchedule": json_shapes.NewSchedule,
    "NewTime": json_shapes.When,
    "BulkCancel": selections.BulkCancel,
    "BulkMove": selections.BulkMove,
    "Redrive": json_shapes.Redrive,
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_shape_has_an_example_that_fits_it(name):
    shape = jsonschema_rs.validator_for(ref(name) | {"components": {"schemas": SCHEMAS}})
    (example,) = SCHEMAS[name]["examples"]
    assert [str(error) for error in shape.iter_errors(example)] == []


@pytest.mark.parametrize("name", BODIES)
def test_a_body_has_the_fields_that_are_read(name):
    body, told = BODIES[name], SCHEMAS[name]
    read = msgspec.structs.fields(body)
    assert {field.encode_name for field in read} == set(told["properties"])
    assert [field.encode_name for field in read if field.required] == told.get("required", [])
    assert body.__struct_config__.forbid_unknown_fields
    assert told["additionalProperties"] is False
    for field in read:
        kind = field.type
        if field.required and kind is not str:  # what msgspec checks
            assert (
                told["properties"][field.encode_name].items() >= msgspec.json.schema(kind).items()
            )


def test_it_does_what_its_document_says(redis_url, space, tmp_path):
    """With every check of schemathesis; schemathesis.toml says what no schema can."""
    settings = Settings(redis=redis_url, space=space, http_addr="127.0.0.1:0")
    process = HttpProcess(settings, redis_url=redis_url)
    try:
        done = subprocess.run(
            [
                *(SCHEMATHESIS, "--config-file", CONFIG, "run", f"{process.url}/openapi.json"),
                *("--max-examples", str(EXAMPLES_MAX), "--seed", "1", "--workers", "1"),
                "--generation-deterministic",
            ],
            cwd=tmp_path,
            env=os.environ | HOOKS,
            capture_output=True,
            timeout=240,
            check=False,
        )
    finally:
        process.close()
    assert done.returncode == 0, done.stdout.decode()[-8_000:]
