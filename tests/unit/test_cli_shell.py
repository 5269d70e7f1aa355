"""What a shell gets from the command line: completion, and a man page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sendlater.cli import app

ROOT = Path(__file__).parents[2]
COMPLETE = """
source {script}
COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE="{words}"; COMP_POINT=${{#COMP_LINE}}
$(complete -p sendlater | sed -E 's/.*-F ([^ ]+).*/\\1/')
echo "${{COMPREPLY[@]}}"
"""


def completion(shell):
    command = [sys.executable, "-m", "sendlater", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("words", "completed"),
    [("sendlater can", "cancel"), ("sendlater cancel --id-p", "--id-prefix")],
)
def test_bash_completes_commands_and_flags(tmp_path, words, completed):
    script = tmp_path / "completion"
    script.write_text(completion("bash"))
    code = COMPLETE.format(script=script, words=words, last=len(words.split()) - 1)
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [completed], done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(shell):
    assert "deliver-now" in completion(shell)


def test_the_man_page_has_every_command():
    page = subprocess.run(
        [sys.executable, ROOT / "deploy" / "man-page"], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r'^\.TH "?sendlater"? "?1"?', page, re.MULTILINE | re.IGNORECASE)
    plain = page.replace("\\-", "-")
    assert not [
        name for name in app if f".B \\fB{name}\\fP" not in plain and not name.startswith("-")
    ]
    assert "sendlater cancel [OPTIONS] [ARGS" in plain
