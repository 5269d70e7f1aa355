"""Installs the peers under HOME with go, npm and uv: exact versions, and hashes of what comes."""

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.system import DRIVERS, HOME, ROOT, install_once, run

GO, NODE, PYTHON, OLDER = (HOME / name for name in ("go", "node", "python", "older"))
OLDER_PYTHON = OLDER / "environment" / "bin" / "python"
OLDER_COMMIT = "d2ee6ce507df66837e4c40576ccbdef551684ac7"
"""The first one with this bench, before anything in it was made cheaper."""
REQUIREMENTS = "requirements.txt"
NATS_SERVER = "github.com/nats-io/nats-server/v2"
NPM_INSTALL = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts"]
"""What package-lock.json has comes as it says; `npm ci` wants other systems' packages in it too."""


def install_go() -> None:
    """The NATS server and the drivers in Go; go.sum has the hashes."""
    source = DRIVERS / "go"
    made_from = sorted(p for p in source.rglob("*") if p.suffix in (".go", ".mod", ".sum"))
    command: list[str | Path] = [
        "go",
        "build",
        "-trimpath",
        "-mod=readonly",
        "-o",
        GO,
        "./...",
        NATS_SERVER,
    ]
    install_once(GO, made_from, lambda: _quiet(command, source))


def install_node() -> None:
    """The queues for Node and their drivers; package-lock.json has the hashes."""
    made_from = sorted((DRIVERS / "node").glob("*.*"))

    def make() -> None:
        for path in made_from:
            shutil.copy(path, NODE)
        _quiet(NPM_INSTALL, NODE)

    install_once(NODE, made_from, make)


def install_python() -> None:
    """The queues in Python, in an environment of their own; requirements.txt has the hashes."""
    wanted = DRIVERS / "python" / REQUIREMENTS
    install_once(PYTHON, [wanted], lambda: _environment(PYTHON, wanted))


def install_older() -> None:
    """An older sendlater, from the history of this repository, with what it wanted then."""

    def make() -> None:
        code = OLDER / "code.tar"
        _quiet(["git", "archive", "-o", code, OLDER_COMMIT, "src", "bench", REQUIREMENTS], ROOT)
        shutil.unpack_archive(code, OLDER, filter="data")
        _environment(OLDER / "environment", OLDER / REQUIREMENTS)

    install_once(OLDER, [Path(__file__)], make)


def go_versions(*modules: str) -> dict[str, str]:
    """Versions of Go and of modules, as go.mod pins them."""
    text = (DRIVERS / "go" / "go.mod").read_text()
    found = {m: re.search(rf"\b{re.escape(m)} v(\S+)", text) for m in modules}
    named = {re.sub(r"/v\d+$", "", m).split("/")[-1]: f[1] for m, f in found.items() if f}
    return {"go": run(["go", "env", "GOVERSION"], cwd=DRIVERS).strip()[2:], **named}


def node_versions(*packages: str) -> dict[str, str]:
    """Versions of Node and of packages, as package.json pins them."""
    pinned = json.loads((DRIVERS / "node" / "package.json").read_text())["dependencies"]
    named = {name: pinned[name] for name in packages}
    return {"node": run(["node", "--version"], cwd=DRIVERS).strip()[1:], **named}


def python_versions(*packages: str) -> dict[str, str]:
    """Versions of packages, as requirements.txt pins them."""
    text = (DRIVERS / "python" / REQUIREMENTS).read_text()
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", text, re.MULTILINE))
    return {name: pinned[name] for name in packages}


def _environment(made: Path, wanted: Path) -> None:
    """An environment of Python with what is `wanted`, all with hashes."""
    uv = Path(sys.executable).parent / "uv"
    _quiet([uv, "venv", "--quiet", "--clear", "--python", sys.executable, made])
    python = made / "bin" / "python"
    _quiet([uv, "pip", "install", "-q", "--python", python, "--require-hashes", "-r", wanted])


def _quiet(command: Sequence[str | Path], cwd: Path = HOME) -> None:
    run(command, cwd=cwd)
