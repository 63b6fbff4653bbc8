"""Who may ask what: names this server answers to, and the token that everything but the page needs.

A page of another site can make a browser send requests to loopback, and can have its own name point
there (DNS rebinding). So a request must name us as this server does, one from a page must come from
our own page. Other users of the machine reach loopback as well: so whoever wants to see or change
something must know the token, which was printed once. A browser shows it once and is given a cookie,
with which it can look; to change something takes the token each time.
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
"""The environment variable that names a file with the token, for those who ask again and again."""
SHORTEST: Final = 20


def new_token() -> str:
    """From the file that the environment names, else drawn."""
    named = os.environ.get(TOKEN_FILE)
    if not named:
        return secrets.token_urlsafe(24)
    try:
        mode, token = stat.S_IMODE(os.stat(named).st_mode), Path(named).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"{TOKEN_FILE}: '{named}' cannot be read: {why}.") from None
    if mode & 0o026:
        raise UserError(
            f"{TOKEN_FILE}: '{named}' is open to others (mode {mode:04o}): chmod 600 it."
        )
    if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(
            f"{TOKEN_FILE}: '{named}' must hold one word of at least {SHORTEST} characters. Make one "
            "with: (umask 077; openssl rand -hex 24 > FILE)"
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
    """Looks at the headers of a request; what it says is why the request is refused."""

    def __init__(
        self,
        token: str,
        names: Iterable[str] = (),
        *,
        acts: bool = True,
        cookie: str = "everstream",
    ) -> None:
        """names: what this server is called beside its addresses. acts: whether it can be told to do
        something. cookie: what the cookie is called; browsers do not tell ports of a host apart.
        """
        self._token = token
        self._acts = acts
        self.cookie = cookie
        own = (socket.gethostname(), socket.getfqdn())
        self._names = {name.lower() for name in ("localhost", *own, *names)}

    @property
    def session(self) -> str:
        """What the cookie holds: good for looking, and of no use to who wants the token."""
        return hmac.digest(self._token.encode(), b"everstream page session", "sha256").hex()

    def why_not(self, headers: Headers) -> str | None:
        """For every request."""
        host = headers.get("host", "")
        if not self._is_ours(_name_in(host)):
            return f"this server is not called '{_name_in(host)}'"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "a page of another site asks"
        return None

    def why_no_look(self, headers: Headers, cookies: Mapping[str, str]) -> str | None:
        """For those that only look; None if they may."""
        if self._knows_token(headers) or _same(cookies.get(self.cookie, ""), self.session):
            return None
        return (
            "open the link that was printed when the page was opened, with its token, or send "
            "'Authorization: Bearer TOKEN'"
        )

    def why_no_action(self, headers: Headers) -> str | None:
        """For those that change something; None if it may be done."""
        if not self._acts:
            return "this page only shows: it belongs to no running command that could be told"
        if not self._knows_token(headers):
            return (
                "actions need the token that was printed when the page was opened, as "
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
