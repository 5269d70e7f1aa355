"""The house rules that a machine can check: who may import whom, sizes, words, quiet tests."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "sendlater"
GROUND = {"model", "errors", "clock", "limits", "config", "sendlater", ""}
ROOMS: dict[str, set[str]] = {
    "": {"client", "topics"},
    "dialects": set(),
    "pending": set(),
    "topics": set(),
    "local": set(),
    "buckets": set(),
    "pipeline": {"dialects", "pending", "topics", "buckets", "client"},
    "client": {"dialects", "pending", "topics", "local"},
    "logs": set(),
    "doctor": {"local", "buckets"},
    "metrics": {"client", "pending"},
    "canary": {"client", "dialects", "pending"},
    "etf1": {"client", "dialects", "pending"},
    "sidecars": {"client", "pending", "metrics", "canary", "etf1"},
    "api": {"client", "dialects", "pending", "topics", "metrics", "logs"},
    "service": {"pipeline", "pending", "client", "local", "topics", "sidecars"},
    "bench": {"client", "dialects", "pending", "service", "local"},
    "bucket_service": {"pipeline", "buckets", "local"},
    "__main__": {"cli"},
    "cli": {
        "client",
        "dialects",
        "pending",
        "buckets",
        "service",
        "bucket_service",
        "local",
        "doctor",
        "bench",
        "api",
        "etf1",
        "logs",
    },
}
ONLY_HERE = {
    "pyspark": {"pipeline", "service", "bucket_service"},
    "redis": {"pending", "topics", "local", "doctor"},
    "cyclopts": {"cli"},
    "fastapi": {"api"},
}
FILE_LINES_MAX = 460
FUNCTION_LINES_MAX = 70


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py").replace("__init__", "")


def test_doors_open_one_way() -> None:
    wrong = []
    for path in modules():
        room = room_of(path)
        for name in imports(path):
            top, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if top == "sendlater" and other not in GROUND | {room} | ROOMS.get(room, set()):
                wrong.append(f"{path.relative_to(SRC)} imports {name}")
            if top in ONLY_HERE and room not in ONLY_HERE[top]:
                wrong.append(f"{path.relative_to(SRC)} imports {top}: only {ONLY_HERE[top]} may")
    assert not wrong, "\n".join(wrong)


def test_the_ground_floor_uses_nobody() -> None:
    for name in ("model", "errors", "clock", "limits", "config"):
        used = {i for i in imports(SRC / f"{name}.py") if i.startswith("sendlater.")}
        assert used <= {"sendlater.errors", "sendlater.limits"}, (name, used)


def test_files_and_functions_fit_on_a_screen() -> None:
    long = []
    for path in modules():
        text = path.read_text()
        if text.count("\n") > FILE_LINES_MAX:
            long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > FUNCTION_LINES_MAX:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size} lines")
    assert not long, "\n".join(long)


def test_what_is_public_has_a_docstring() -> None:
    silent = []
    for path in modules():
        tree = ast.parse(path.read_text())
        for node in [tree, *tree.body]:
            kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(node, kinds) and not ast.get_docstring(node):
                name = getattr(node, "name", "module")
                if not name.startswith("_"):
                    silent.append(f"{path.relative_to(ROOT)}: {name}")
    assert not silent, "\n".join(silent)


def test_no_room_for_everything_else() -> None:
    banned = {"utils", "helpers", "common", "base", "manager"}
    assert not [p for p in modules() if p.stem in banned]


def test_tests_wait_for_conditions_and_never_sleep() -> None:
    waiting = re.compile(r"\bsleep\(")
    allowed = {"servers.py"}
    loud = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name not in allowed and waiting.search(path.read_text()) and path != Path(__file__)
    ]
    assert not loud, loud


def test_a_script_names_the_keys_and_arguments_it_uses() -> None:
    """The header of a Lua file is its signature; a name in it that nothing uses is a lie."""
    for path in sorted((SRC / "pending" / "lua").glob("*.lua")):
        text = path.read_text()
        names = [
            name.partition(":")[0]
            for line in re.findall(r"^-- (?:keys|args): (.+)$", text, re.MULTILINE)
            for name in line.split()
        ]
        body = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
        if {"owner", "state"} <= set(names):
            body += " owner state"  # the loader asks whether the one is the other's
        unused = [name for name in names if not re.search(rf"\b{name}\b", body)]
        assert not unused, (path.name, unused)


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    twice = {name for name, after in pairwise(names) if name == after}
    assert not twice, f"pytest cannot collect these together: {sorted(twice)}"
