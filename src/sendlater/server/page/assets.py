"""Scripts and styles of the page, ours and plotly's from its package.

Their address has a digest of them all in it, so that browsers keep them for good and ask anew after
an upgrade. They are packed once, when the process starts.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources, util
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from sendlater.server.problems import Problem

PLOTLY = "plotly.min.js"
VERSION_CHARS = 16
KEPT_S = 365 * 86_400
TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is and packed with gzip, and its kind."""

    plain: bytes
    packed: bytes
    kind: str


@cache
def contents() -> dict[str, bytes]:
    """Every file by its name."""
    package = util.find_spec("plotly")
    assert package is not None
    assert package.origin is not None
    ours = (resources.files(__package__) / "static").iterdir()
    return {
        **{file.name: file.read_bytes() for file in ours if not file.name.startswith(".")},
        PLOTLY: (Path(package.origin).parent / "package_data" / PLOTLY).read_bytes(),
    }


@cache
def version() -> str:
    """What the addresses of these files have in common, and no others."""
    whole = hashlib.sha256()
    for name, content in sorted(contents().items()):
        whole.update(name.encode() + hashlib.sha256(content).digest())
    return whole.hexdigest()[:VERSION_CHARS]


@cache
def asset(name: str) -> Asset | None:
    """A file, if there is one of the name."""
    content = contents().get(name)
    if content is None:
        return None
    kind = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    return Asset(content, gzip.compress(content, mtime=0), kind)


def address(name: str) -> str:
    """Where a file is served."""
    return f"/static/{version()}/{name}"


def pack_all() -> None:
    """So that nobody waits for it: packing plotly's script takes a quarter of a second."""
    for name in contents():
        asset(name)


@router.get("/static/{of}/{name}")
def static_file(request: Request, of: str, name: str) -> Response:
    """No token is needed. An address with another digest is of another version: gone."""
    found = asset(name) if of == version() else None
    if found is None:
        raise Problem(404, "no such file")
    tag = f'"{of}"'
    headers = {
        "Cache-Control": f"public, max-age={KEPT_S}, immutable",
        "ETag": tag,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.packed, media_type=found.kind, headers=headers)
    return Response(found.plain, media_type=found.kind, headers=headers)
