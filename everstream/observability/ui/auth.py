"""Access control: the names this server answers to, and the token that protects all but the page.

A page of another site can make a browser send requests to loopback, and can point its own name
there (DNS rebinding). So a request must use this server's name, and a request from a page must come
from our own page. Other users of the machine also reach loopback, so reading or changing anything
needs the token, which is printed once. A browser presents it once and gets a cookie for reading;
changes need the token each time.
"""

import hmac
import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from everstream.errors import UserError

TOKEN_FILE: Final = "EVERSTREAM_UI_TOKEN_FILE"
"""The environment variable that names a file with the token, for repeated use."""
SHORTEST: Final = 20


def new_token() -> str:
    """From the file that the environment names; otherwise random."""
    named = os.environ.get(TOKEN_FILE)
    if not named:
        return secrets.token_urlsafe(24)
    try:
        mode, token = stat.S_IMODE(os.stat(named).st_mode), Path(named).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UserError(f"{TOKEN_FILE}: '{named}' cannot be read: {why}.") from None
    if mode & 0o026:
        raise UserError(
            f"{TOKEN_FILE}: '{named}' is open to others (mode {mode:04o}): chmod 600 it."
        )
    if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(
            f"{TOKEN_FILE}: '{named}' must contain one word of at least {SHORTEST} characters. Make "
            "one with: (umask 077; openssl rand -hex 24 > FILE)"
        )
    return token


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks the headers of a request; returns why the request is refused, or None."""

    def __init__(
        self,
        token: str,
        names: Iterable[str] = (),
        *,
        acts: bool = True,
        cookie: str = "everstream",
    ) -> None:
        """names: the server's names besides its addresses. acts: whether actions are available.
        cookie: the cookie's name; browsers do not separate the ports of a host.
        """
        self._token = token
        self._acts = acts
        self.cookie = cookie
        own = (socket.gethostname(), socket.getfqdn())
        self._names = {name.lower() for name in ("localhost", *own, *names)}

    @property
    def session(self) -> str:
        """The cookie's content: good for reading, and useless for finding the token."""
        return hmac.digest(self._token.encode(), b"everstream page session", "sha256").hex()

    def why_not(self, headers: Headers) -> str | None:
        """For every request."""
        host = headers.get("host", "")
        if not self._is_ours(_name_in(host)):
            return f"this server is not called '{_name_in(host)}'"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "the request comes from a page of another site"
        return None

    def why_no_look(self, headers: Headers, cookies: Mapping[str, str]) -> str | None:
        """For read requests; None if allowed."""
        if self._knows_token(headers) or _same(cookies.get(self.cookie, ""), self.session):
            return None
        return (
            "open the link with the token that was printed when the page was started, or send "
            "'Authorization: Bearer TOKEN'"
        )

    def why_no_action(self, headers: Headers) -> str | None:
        """For actions; None if allowed."""
        if not self._acts:
            return "this page is read-only: it belongs to no running command"
        if not self._knows_token(headers):
            return (
                "actions need the token that was printed when the page was started, as "
                "'Authorization: Bearer TOKEN'"
            )
        return None

    def _knows_token(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _same(given.strip(), self._token)

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)  # an address cannot be made to point elsewhere
        except ValueError:
            return False
        return True


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _name_in(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
