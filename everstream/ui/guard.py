"""Who may ask what: names this server answers to, and the token that actions need.

A page of another site can make a browser send requests to loopback, and can have its own name point
there (DNS rebinding). So a request must name us as this server does, one from a page must come from
our own page, and whoever wants to change something must know the token, which was printed once.
"""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers


def new_token() -> str:
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Looks at the headers of a request; what it says is why the request is refused."""

    def __init__(self, token: str | None, names: Iterable[str] = ()) -> None:
        """names: what this server is called beside its addresses."""
        self._token = token
        own = (socket.gethostname(), socket.getfqdn())
        self._names = {name.lower() for name in ("localhost", *own, *names)}

    @property
    def allows_actions(self) -> bool:
        return self._token is not None

    def why_not(self, headers: Headers) -> str | None:
        """For every request."""
        host = headers.get("host", "")
        if not self._is_ours(_name_in(host)):
            return f"this server is not called '{_name_in(host)}'"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "a page of another site asks"
        return None

    def why_no_action(self, headers: Headers) -> str | None:
        """For those that change something; None if it may be done."""
        if self._token is None:
            return "this page only shows: it belongs to no running command that could be told"
        kind, _, given = headers.get("authorization", "").partition(" ")
        known = kind.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), self._token.encode()
        )
        if not known:
            return (
                "actions need the token that was printed when the page was opened, as "
                "'Authorization: Bearer TOKEN'; without it this page only shows"
            )
        return None

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)  # an address cannot be made to point elsewhere
        except ValueError:
            return False
        return True


def _name_in(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
