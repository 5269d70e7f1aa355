"""The REST interface does what its OpenAPI document says, whatever is asked of it."""

import os
import subprocess
import sys
from pathlib import Path

from sendlater.api.serving import HttpProcess
from sendlater.config import Settings

SCHEMATHESIS = str(Path(sys.executable).parent / "schemathesis")
EXAMPLES_MAX = 12
HOOKS = {
    "SCHEMATHESIS_HOOKS": "schemathesis_ndjson",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
}


def test_it_does_what_its_document_says(redis_url, space, tmp_path):
    """Not asked: that whatever fits the schema is taken. A time may be too far away, two fields
    may exclude each other; the schema does not say so, the answer does."""
    settings = Settings(redis=redis_url, space=space, http_addr="127.0.0.1:0")
    process = HttpProcess(settings, redis_url=redis_url)
    try:
        done = subprocess.run(
            [
                *(SCHEMATHESIS, "run", f"{process.url}/openapi.json"),
                *("--max-examples", str(EXAMPLES_MAX), "--seed", "1", "--workers", "1"),
                *("--exclude-checks", "positive_data_acceptance"),
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
