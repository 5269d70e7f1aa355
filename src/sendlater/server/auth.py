"""Authorisation: tokens in a file, roles, sessions of the page, requests from other sites.

The tokens file has a line for each token: name, role (read, write, admin) and the SHA-256 of the
token in hexadecimal. A token is 32 random bytes, so a fast digest is enough to protect it.
"""

import hashlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import structlog
from itsdangerous import BadSignature, TimestampSigner
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sendlater.addresses import LOOPBACK
from sendlater.errors import BadSettings
from sendlater.server.problems import Problem, problem_response

COOKIE = "sendlater-session"
SESSION_S = 12 * 3_600
"""How long a sign-in lasts."""
SAFE = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/healthz", "/readyz", "/sign-in", "/sign-out", "/static/")
"""Paths that need no token."""
TOKEN_BYTES = 32
_log = structlog.get_logger()
_LINE = re.compile(r"([A-Za-z0-9_.@-]{1,64})\s+(read|write|admin)\s+([0-9a-f]{64})")


class Role(IntEnum):
    """Each role includes the roles before it."""

    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends a request; `by_cookie`: the browser attached the identity by itself."""

    name: str
    role: Role
    by_cookie: bool = False


EVERYBODY = Identity("local", Role.ADMIN, by_cookie=True)
"""The identity of every request if no tokens are configured."""


def new_token(name: str, role: str) -> tuple[str, str]:
    """A new token, and its line for the tokens file. Raises BadSettings."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    line = f"{name} {role} {_digest(token)}"
    if not _LINE.fullmatch(line):
        raise BadSettings(f"expected a name of A-Z a-z 0-9 _ . @ - and a role, got {name} {role}")
    return token, line


class Tokens:
    """The tokens file; it is read again when it changes. While it cannot be read, or a line of it
    is wrong, the tokens read last stay valid, and the log says so."""

    def __init__(self, path: Path | None) -> None:
        """Raises BadSettings when it cannot be read."""
        self._path = path
        self._stamp = 0
        self._known: dict[str, Identity] = {}
        key = secrets.token_bytes(TOKEN_BYTES)
        self._signer = TimestampSigner(key, digest_method=hashlib.sha256)
        if path is not None:
            self._read(path)

    @property
    def asked(self) -> bool:
        """Whether a token is needed at all."""
        return self._path is not None

    def find(self, token: str) -> Identity | None:
        """The owner of a token."""
        self._refresh()
        return self._known.get(_digest(token))

    def session(self, token: str) -> str | None:
        """The value of a session cookie; None for an unknown token."""
        return self._signer.sign(_digest(token)).decode() if self.find(token) else None

    def of_session(self, cookie: str) -> Identity | None:
        """The owner of a session; None once it has expired or its token is not in the file."""
        try:
            digest = self._signer.unsign(cookie, max_age=SESSION_S).decode()
        except BadSignature:
            return None
        self._refresh()
        known = self._known.get(digest)
        return Identity(known.name, known.role, by_cookie=True) if known else None

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            if self._path.stat().st_mtime_ns != self._stamp:
                self._read(self._path)
        except (OSError, BadSettings) as error:
            _log.error("the tokens read last stay valid", cause=str(error))

    def _read(self, path: Path) -> None:
        known = {}
        try:
            stamp = path.stat().st_mtime_ns
            for number, line in enumerate(path.read_text().splitlines(), 1):
                text = line.partition("#")[0].strip()
                match = _LINE.fullmatch(text)
                if match:
                    known[match[3]] = Identity(match[1], Role[match[2].upper()])
                elif text:
                    raise BadSettings(
                        f"http_tokens: {path} line {number}: expected name, role (read, write, "
                        "admin) and a SHA-256"
                    )
        except (OSError, UnicodeDecodeError) as error:
            raise BadSettings(f"http_tokens: cannot read {path}: {error}") from error
        self._known, self._stamp = known, stamp


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def asks_for_page(scope: Scope) -> bool:
    """Whether a request is that of a browser for a page."""
    return any(b"text/html" in value for name, value in scope["headers"] if name == b"accept")


def _sign_in(scope: Scope) -> str:
    """Where to sign in, and what was to be seen: the way back to it."""
    query = scope["query_string"].decode("latin-1")
    wanted = f"{scope['path']}?{query}" if query else scope["path"]
    if scope["method"] != "GET" or wanted == "/":
        return "/sign-in"
    return f"/sign-in?{urlencode({'to': wanted})}"


class Gate:
    """Lets authorised requests through, with the sender's identity in `scope["who"]`."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens, loopback: bool) -> None:
        self.app, self.tokens, self.loopback = app, tokens, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 401 or 403, or pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            scope["who"] = self._who(scope, headers)
            if scope["method"] not in SAFE:
                _require_same_site(scope["who"], headers)
        except Problem as problem:
            answer = problem_response(problem)
            if problem.status == 401 and asks_for_page(scope):
                answer = RedirectResponse(_sign_in(scope), 303)
            await answer(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _who(self, scope: Scope, headers: dict[bytes, str]) -> Identity | None:
        if not self.tokens.asked:
            # DNS rebinding: another site can point its own host name to our address.
            if self.loopback and _host(headers.get(b"host", "localhost")) not in LOOPBACK:
                raise Problem(403, f"expected one of {LOOPBACK} as host, as there are no tokens")
            return EVERYBODY
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        found = None
        if kind.lower() == "bearer":
            found = self.tokens.find(token.strip())
        else:
            sessions = (self.tokens.of_session(one) for one in _sessions(scope))
            found = next(filter(None, sessions), None)
        if found is None and not scope["path"].startswith(OPEN_PATHS):
            raise Problem(
                401,
                "expected a known token in `Authorization: Bearer ...`, or a sign-in",
                headers={"WWW-Authenticate": 'Bearer realm="sendlater"'},
            )
        return found


def may(scope: Any, role: Role) -> bool:
    """Whether the sender's role is high enough; of who need not have said who it is, it is not."""
    who: Identity | None = scope.get("who")
    return who is not None and who.role >= role


def require(scope: Any, role: Role) -> Identity:
    """The sender's identity. Raises Problem 403 if its role is too low."""
    who: Identity | None = scope.get("who")
    if who is None or not may(scope, role):
        has = who.role.name.lower() if who else "none"
        raise Problem(403, f"expected a token with role {role.name.lower()}, got {has}")
    return who


def _require_same_site(who: Identity | None, headers: dict[bytes, str]) -> None:
    """Refuses requests by cookie that another site made: they must come from our own page.

    Scripts cannot set `Sec-Fetch-Site`; if a browser does not send it, `Origin` must be ours.
    """
    if who is not None and not who.by_cookie:
        return
    site = headers.get(b"sec-fetch-site")
    origin = headers.get(b"origin")
    if site is not None:
        same = site in ("same-origin", "none")
    else:
        same = origin is None or origin.partition("://")[2] == headers.get(b"host", "")
    if not same:
        raise Problem(403, f"expected a request from our own page, got one from {origin or site}")


def cookie_name(scope: Any) -> str:
    """The name of the session's cookie. Browsers send a cookie to every port of its host: another
    installation on this machine must not overwrite ours, so the port they see is in the name."""
    host = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"host"), "")
    port = host.rpartition("]")[2].rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isascii() and port.isdigit() else COOKIE


def _sessions(scope: Any) -> Iterator[str]:
    """Every value of the session's cookie: another program on this host, or a page of a parent
    domain, can have set one with the same name, and browsers send both."""
    name = cookie_name(scope)
    for header, value in scope["headers"]:
        if header == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                found, equals, content = pair.partition("=")
                if equals and found.strip() == name:
                    yield content.strip().strip('"')


def _host(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] or host if ":" in host else host
