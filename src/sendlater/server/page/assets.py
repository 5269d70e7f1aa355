"""Scripts and styles of the page; the scripts of each page as one file, and one that all share.

Their address contains a digest of all of them, so browsers cache them permanently and load them
again after an upgrade. They are compressed once, when the process starts.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import Response

from sendlater.server.page.bundle import bundles
from sendlater.server.problems import Problem

VERSION_CHARS = 16
SHARED = "shared"
"""The script of all pages; the others are put together, one for each page."""
KEPT_S = 365 * 86_400
TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file, plain and compressed with gzip, and its content type."""

    plain: bytes
    packed: bytes
    kind: str


@cache
def contents() -> dict[str, bytes]:
    """Every file by its name."""
    ours = (resources.files(__package__) / "static").iterdir()
    files = {file.name: file.read_bytes() for file in ours if not file.name.startswith(".")}
    scripts = {
        name.removesuffix(".js"): files.pop(name).decode()
        for name in [*files]
        if name.endswith(".js")
    }
    whole = bundles(scripts, apart=SHARED)
    return files | {f"{name}.js": text.encode() for name, text in whole.items()}


@cache
def version() -> str:
    """The digest of all files, for their addresses."""
    whole = hashlib.sha256()
    for name, content in sorted(contents().items()):
        whole.update(name.encode() + hashlib.sha256(content).digest())
    return whole.hexdigest()[:VERSION_CHARS]


@cache
def asset(name: str) -> Asset | None:
    """The file of this name, if it exists."""
    content = contents().get(name)
    if content is None:
        return None
    kind = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    return Asset(content, gzip.compress(content, mtime=0), kind)


def address(name: str) -> str:
    """The path of a file."""
    return f"/static/{version()}/{name}"


def pack_all() -> None:
    """Compress all files in advance, so that the first visitor does not wait for it."""
    for name in contents():
        asset(name)


@router.get("/static/{of}/{name}")
async def static_file(request: Request, of: str, name: str) -> Response:
    """Needs no token. An address with another digest belongs to another version: 404."""
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
