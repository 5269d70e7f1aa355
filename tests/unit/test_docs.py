"""The documentation says what the code does: names both ways, links, and nothing of one machine."""

import ast
import doctest
import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from cyclopts import App
from rich.console import Console

from sendlater import dialects, limits
from sendlater.cli import connection as door
from sendlater.cli.connection import app
from sendlater.config import Inbox, Settings
from sendlater.model import Reason
from sendlater.store import Shard

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "sendlater"
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FREE = {"--help", "-h", "--version"}


def text(path: Path) -> str:
    return path.read_text()


def rows(*paths: Path) -> Iterator[list[str]]:
    """The cells of every table row, without heads and rules."""
    rule = re.compile(r"\|( *-+ *\|)+$")
    for path in paths:
        lines = text(path).splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("|") and not rule.match(line) and not rule.match(following):
                yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def first_cells(*paths: Path) -> set[str]:
    """What stands in backticks in the first cells of tables."""
    return {name for row in rows(*paths) for name in re.findall(r"`([^`]+)`", row[0])}


def names_of(path: Path, pattern: str) -> set[str]:
    return {name for name in first_cells(path) if re.fullmatch(pattern, name)}


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    documented = names_of(REFERENCE / "settings.md", r"[a-z_]+")

    assert set(Settings.model_fields) - documented == set()
    assert documented - set(Settings.model_fields) == set()


def test_documented_defaults_are_the_defaults() -> None:
    wrong = []
    for row in rows(REFERENCE / "settings.md"):
        name = row[0].strip("`")
        if len(row) != 4 or name in ("setting", "data_dir", "cache_dir"):
            continue
        default = Settings.model_fields[name].default
        if name == "inboxes":
            default = [inbox.model_dump() for inbox in default]
        elif isinstance(default, tuple):
            default = list(default)
        elif name == "redis":
            default = default.get_secret_value()
        if json.loads(row[1].strip("`")) != default:
            wrong.append((name, row[1], default))
    assert not wrong


def test_documented_limits_are_those_of_the_settings() -> None:
    """A number in the column `limit` is a bound of the field, and the other way round."""
    wrong = []
    for row in rows(REFERENCE / "settings.md"):
        name = row[0].strip("`")
        field = Settings.model_fields.get(name)
        if len(row) != 4 or field is None or name == "space":
            continue
        bounds = {b for m in field.metadata for b in (getattr(m, k, None) for k in ("ge", "le"))}
        if any(getattr(m, "gt", None) == 0 for m in field.metadata):
            bounds.add(1 if bounds - {None} else 0)
        told = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", row[2])}
        if told != bounds - {None}:
            wrong.append((name, row[2], bounds))
    assert not wrong


def test_the_fields_of_an_inbox_are_documented() -> None:
    page = text(REFERENCE / "settings.md")

    assert all(f'"{name}"' in page for name in Inbox.model_fields)


def wire_names() -> set[str]:
    """Every header name where records are read and written; whole literals, not prose."""
    found = {dialects.names.CALLER_SERVICE}
    for path in (p for room in ("dialects", "spark") for p in (SRC / room).rglob("*.py")):
        for node in ast.walk(ast.parse(text(path))):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and re.fullmatch(
                r"(sendlater|scheduler)-[a-z-]*[a-z]", value
            ):
                found.add(value)
    return found - {"sendlater-topics"}  # the name of a format


def test_every_header_is_documented_and_every_documented_one_exists() -> None:
    pattern = r"(sendlater|scheduler)-[a-z-]+|CALLER_SERVICE"
    documented = names_of(REFERENCE / "headers.md", pattern)

    assert wire_names() - first_cells(*PAGES) == set()
    assert documented - wire_names() == set()


def test_every_reason_of_a_rejection_is_documented() -> None:
    page = text(REFERENCE / "headers.md")
    after = page.index("| reason | why |")
    documented = set(re.findall(r"^\| `([a-z-]+)`", page[after:], re.MULTILINE))

    assert documented == {reason.value for reason in Reason}


def test_documented_lengths_are_the_limits() -> None:
    page = text(REFERENCE / "headers.md")

    assert f"1 to {limits.ID_BYTES_MAX} bytes" in page
    assert f"`scheduler-epoch` of {limits.EPOCH_SECONDS_MAX:,} or more" in page


def test_every_key_of_a_shard_is_documented_and_every_documented_one_exists() -> None:
    there = set(Shard((None,), space="sendlater", number=0).keys)
    told = {m[1] for name in first_cells(*PAGES) if (m := re.match(r"\{sendlater:N\}:(\w+)", name))}

    assert told == there


def commands(of: App, prefix: str = "") -> Iterator[tuple[str, App]]:
    """Every command that does something, by the words it is called with."""
    for name in of:
        if name in FREE:
            continue
        command = of[name]
        words = f"{prefix}{name}"
        inner = [one for one in command if one not in FREE]
        if inner:
            yield from commands(command, f"{words} ")
        else:
            yield words, command


def flags_of(command: App) -> set[str]:
    """The flags of a command, without those that only say no or stand for a positional."""
    arguments = [
        a for a in command.assemble_argument_collection() if not a.field_info.is_positional
    ]
    names = {name for argument in arguments for name in argument.names}
    return {name for name in names if name.startswith("-") and not name.startswith("--no-")}


def sections() -> dict[str, str]:
    """cli.md by command; under "" what holds for all."""
    parts = re.split(r"^## ", text(REFERENCE / "cli.md"), flags=re.MULTILINE)
    found = {"": parts[0]}
    for part in parts[1:]:
        named = re.match(r"`sendlater ([a-z-]+(?: [a-z-]+)?)", part)
        key = named[1] if named else ""
        found[key] = found.get(key, "") + part
    return found


def flags_in(section: str) -> set[str]:
    lines = [line for line in section.splitlines() if line.startswith("| `-")]
    return {
        flag for line in lines for flag in re.findall(r"`(-[a-zA-Z0-9-]+)`", line.split("|")[1])
    }


def test_every_command_and_flag_is_documented_and_every_documented_one_exists() -> None:
    told = sections()
    there = dict(commands(app))
    everywhere = "\n".join(text(page) for page in PAGES)
    missing = [
        name for name in there if name not in told and f"`sendlater {name}" not in everywhere
    ]
    assert not missing
    assert told.keys() - there.keys() == {""}

    wrong = []
    for name, command in there.items():
        if name not in told:
            continue  # in a page of its own
        flags = flags_of(command)
        allowed = flags_in(told[name]) | flags_in(told[""])
        if flags - allowed:
            wrong.append(f"{name}: not in cli.md: {sorted(flags - allowed)}")
        if flags_in(told[name]) - flags:
            wrong.append(f"{name}: only in cli.md: {sorted(flags_in(told[name]) - flags)}")
    assert not wrong


def test_every_flag_has_a_help() -> None:
    silent = []
    for name, command in commands(app):
        shown = io.StringIO()
        app.help_print(name.split(), console=Console(file=shown, width=200))
        for line in shown.getvalue().splitlines():
            cells = re.split(r"\s{2,}", line.strip("│* "))
            if cells[0].startswith("-") and (len(cells) < 2 or cells[1].startswith("[")):
                silent.append((name, line))
        assert flags_of(command) <= set(re.findall(r"(?<!\w)-[-\w]+", shown.getvalue()))
    assert not silent


def test_every_exit_code_is_documented() -> None:
    codes = {
        int(row[0].strip("`"))
        for row in rows(REFERENCE / "cli.md")
        if re.fullmatch(r"`\d+`", row[0])
    }
    names = ("OK", "FAILED", "USAGE", "NOT_FOUND", "PARTLY", "NO_CONNECTION", "INTERRUPTED")
    names += ("NOT_HELD",)

    assert codes == {getattr(door, name) for name in names}


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
            if re.match(r"https?://", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                broken.append(f"{page.name}: {target}")
            elif anchor and anchor not in anchors(there):
                broken.append(f"{page.name}: {target}: no such heading")
    assert not broken


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", text(page)):
            if "://" not in target:
                left.append((page.parent / target).resolve())
    assert set(PAGES) - reached == set()


@pytest.mark.parametrize("language", ["python", "toml", "json"])
def test_code_in_the_documentation_can_be_read(language: str) -> None:
    import tomllib

    read = {"python": ast.parse, "toml": tomllib.loads, "json": json.loads}[language]
    for page in PAGES:
        for block in re.findall(
            rf"^```{language}\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE
        ):
            try:
                read(block)
            except (SyntaxError, ValueError) as error:
                raise AssertionError(f"{page.name}: {error}\n{block}") from error


def test_examples_in_docstrings_are_true() -> None:
    sources = ROOT / "src"
    written = [path for path in sources.rglob("*.py") if ">>> " in path.read_text()]
    names = [".".join(path.relative_to(sources).with_suffix("").parts) for path in written]
    told = [doctest.testmod(import_module(name)) for name in names]
    assert (len(told) > 3, sum(one.failed for one in told)) == (True, 0)


def test_commands_in_the_documentation_are_understood() -> None:
    found = 0
    for page in PAGES:
        for block in text(page).split("\n```")[1::2]:
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(\S*/)?sendlater [a-z]", line):
                    words = shlex.split(line, comments=True)
                    app.parse_args(words[1:], print_error=False, exit_on_error=False)
                    found += 1
    assert found > 10


def test_settings_in_the_documentation_are_accepted(monkeypatch, tmp_path) -> None:
    from sendlater.config import load

    monkeypatch.chdir(tmp_path)
    for page in PAGES:
        for block in re.findall(r"^```toml\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE):
            (tmp_path / "sendlater.toml").write_text(block)
            load()


def test_the_repository_names_no_machine_and_no_registry() -> None:
    """Two words are split here so that this file does not name them either."""
    hosts = r"pypi\.(org|python)|pythonhosted|repo1?\.maven\.org|maven\.google|artifactory|nexus"
    homes = r"/(home|root|Users|work|tmp)/(?!\S*\bexample)"
    wrong = []
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path == Path(__file__).resolve() or path.suffix in (".lua", ".png") or not path.exists():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if re.search(rf"{hosts}|{homes}", line):
                wrong.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not wrong
