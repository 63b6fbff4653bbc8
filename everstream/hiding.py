"""Removes passwords from texts: from messages, logs, pages and histories.

An address may contain credentials (`scheme://user:password@host`), and so may a library's message
about it. A text does not show where a password with `@`, `/` or spaces ends, so too much is removed
rather than too little: after a user and a colon, everything up to the last `@` of the line.
"""

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_plus, urlsplit

HIDDEN: Final = "***"
SHORTEST: Final = 3
"""Shorter words are not searched for: they occur in every text."""
_WITH_PASSWORD: Final = re.compile(r"://[^\s:/]*:")
_WITH_USER: Final = re.compile(r"://[^\s/]*@")
_SETTING: Final = re.compile(
    r"""(?ix)\b ([\w.-]*(?:password|passwd|pwd|secret|token|credentials?|signature
        |(?:access|account|api|sas|shared)[_-]?key(?:[_-]?id)?))
        (\s*=\s*|["']\s*:\s*) ('(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | [^\s&;,'")]+)"""
)


def hidden(text: str) -> str:
    """A text without the user names and passwords of its URLs and connection strings."""
    return "\n".join(map(_hidden_in_line, text.split("\n")))


def without_secret(url: str) -> str:
    """A URL without its password or user name, and without its options."""
    address, question, _ = hidden(url).partition("?")
    return address + ("?..." if question else "")


def hidden_in(value: Any) -> Any:
    """The same value, without passwords in any text of its dicts and lists."""
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, dict):
        return {name: hidden_in(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hidden_in(inner) for inner in value]
    return value


def place_of(url: str) -> str:
    """Scheme, host, port and path of a URL: all that may be shown. A ValueError if it lacks them."""
    parts = urlsplit(url)
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError("an @ after the host, or a password that is not percent-encoded")
    port = f":{parts.port}" if parts.port else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def without(text: str, secrets: Iterable[str | None], longest: int | None = None) -> str:
    """A text in one line without any of these words, however they are escaped in a URL."""
    spelt = {
        spelling
        for secret in secrets
        if secret
        for spelling in (secret, unquote(secret), unquote_plus(secret), quote(secret, safe=""))
    }
    for secret in sorted(spelt, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
    return " ".join(hidden(text).split())[:longest]


def _hidden_in_line(line: str) -> str:
    match, last = _WITH_PASSWORD.search(line), line.rfind("@")
    if match is not None and last >= match.end():
        line = f"{line[: match.start()]}://{line[last + 1 :]}"
    return _SETTING.sub(rf"\1\2{HIDDEN}", _WITH_USER.sub("://", line))
