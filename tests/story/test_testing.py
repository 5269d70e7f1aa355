"""The real installation for users' tests: the example of its page, as a user would run it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sendlater import Unavailable
from sendlater.testing import Embedded

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.mark.story
def test_the_session_fixture_delivers_a_message(tmp_path):
    (code,) = re.findall(
        r"^```python\n# test_end_to_end.py\n(.*?)^```", PAGE.read_text(), re.M | re.S
    )
    (tmp_path / "test_end_to_end.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.story
def test_an_installation_that_cannot_start_shows_its_log(tmp_path):
    (tmp_path / "data").write_text("no directory")
    with pytest.raises(Unavailable, match="the service has ended: "):
        Embedded(str(tmp_path))
