"""The house rules that a machine can check: who may import whom, sizes, words, quiet tests."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from sendlater.store.scripts import script

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "sendlater"
GROUND = (
    "addresses",
    "model",
    "errors",
    "clock",
    "limits",
    "config",
    "config_environment",
    "config_file",
    "config_secrets",
    "config_tables",
    "logs",
    "redis_client",
)
WIDE = ("spark",)
"""Rooms whose folders are rooms of their own."""
ONLY_HERE = {
    "pyspark": {"spark", "service"},
    "redis": {"ground", "store", "topics", "local", "doctor"},
    "cyclopts": {"cli"},
    "fastapi": {"server"},
}
FILE_LINES_MAX = 350
FUNCTION_LINES_MAX = 70


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, `from room import module` as room.module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield module if module in MODULES else node.module


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    """The room of a module of ours: its folder, or the module itself where it has none."""
    parts = module.split(".")[1:]
    if parts[:1] and parts[0] in GROUND:
        return "ground"
    if len(parts) > 1 and parts[0] in WIDE and (SRC / parts[0] / parts[1]).is_dir():
        return f"{parts[0]}/{parts[1]}"
    return parts[0] if parts else "ground"


MODULES = {name_of(path): path for path in sorted(SRC.rglob("*.py"))}
USED = {name: set(imports(path)) - {name} for name, path in MODULES.items()}


def drawn() -> dict[str, set[str]]:
    """The picture of docs/architecture.md: a line for each room, and whom it imports."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    lines = re.findall(r"^(\S+) +← ?(.*)$", text, re.MULTILINE)
    return {room: set(others.split()) for room, others in lines}


def test_the_picture_of_the_rooms_is_the_code() -> None:
    found: dict[str, set[str]] = {}
    for name, used in USED.items():
        rooms = {room_of(other) for other in used if other in MODULES}
        if name != "sendlater":  # its names are loaded when they are used
            found.setdefault(room_of(name), set()).update(rooms - {room_of(name), "ground"})
    del found["ground"]
    assert drawn() == found


def test_a_room_imports_only_what_stands_above_it() -> None:
    above: set[str] = set()
    for room, others in drawn().items():
        assert others <= above, (room, others - above)
        above.add(room)


def test_no_two_modules_import_each_other_by_whatever_way() -> None:
    ours = {name: {o for o in used if o in MODULES} for name, used in USED.items()}
    ours["sendlater"] = set()
    done: set[str] = set()

    def look(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(ours[name]):
                look(other, (*way, name))
            done.add(name)

    for name in sorted(ours):
        look(name, ())


def test_a_library_is_used_where_it_belongs() -> None:
    wrong = [
        f"{name} imports {other}: only {ONLY_HERE[top]} may"
        for name, used in USED.items()
        for other in used
        if (top := other.partition(".")[0]) in ONLY_HERE
        and room_of(name).partition("/")[0] not in ONLY_HERE[top]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_ground_floor_uses_nobody() -> None:
    for name in GROUND:
        used = {i for i in USED[f"sendlater.{name}"] if i.startswith("sendlater.")}
        assert {room_of(other) for other in used} <= {"ground"}, (name, used)


def test_files_and_functions_fit_on_a_screen() -> None:
    long = []
    for path in MODULES.values():
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
    for path in MODULES.values():
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
    assert not [p for p in MODULES.values() if p.stem in banned]


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
    for path in sorted((SRC / "store" / "lua").glob("*.lua")):
        text = path.read_text()
        names = [
            name.partition(":")[0]
            for line in re.findall(r"^-- (?:keys|args): (.+)$", text, re.MULTILINE)
            for name in line.split()
        ]
        body = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
        if {"owner", "state"} <= set(names):
            body += " owner state"  # the loader asks whether the one is the other's
        if "-- sealed: refuses" in text:
            body += " state"  # the loader asks whether it says so
        for used in re.findall(r"^-- uses: (.+)$", text, re.MULTILINE):
            for part in set(used.split()) & {"recall", "back", "passes", "tags"}:
                body += (SRC / "store" / "lua" / "parts" / f"{part}.lua").read_text()
        unused = [name for name in names if not re.search(rf"\b{name}\b", body)]
        assert not unused, (path.name, unused)


def test_no_comment_hides_what_is_put_before_a_script() -> None:
    """It is one line: a comment in it would end with the line."""
    for path in sorted((SRC / "store" / "lua").glob("*.lua")):
        put_before, _, _ = script(path.stem).lua.partition(path.read_text().partition("\n")[0])
        assert "--" not in put_before, path.name
        assert "\n" not in put_before, path.name


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    twice = {name for name, after in pairwise(names) if name == after}
    assert not twice, f"pytest cannot collect these together: {sorted(twice)}"
