"""Access: whose requests a metadata service serves, and the token that its clients share with it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from email.message import Message
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.fields import RefusalError
from hicache.storage.secrets import SecretText

TOKEN_VARIABLE = "HICACHE_METADATA_TOKEN"  # noqa: S105 - the name of a variable
"""The environment variable that holds the token, for the service and for its clients."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

_TOKEN = re.compile(r"[!-~]{16,512}")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_SCHEME = "bearer "


def checked_token(token: str, source: str) -> str:
    """The token, if it is one. Raises ConfigurationError, which names the source and not the token."""
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(f"{source}: expected a token of 16 to 512 printable ASCII characters without spaces")
    return SecretText(token)


def read_token(file: Path | None) -> str | None:
    """The token in a file, else in the environment, else None. Raises ConfigurationError."""
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE)
        return None if token is None else checked_token(token, f"the variable {TOKEN_VARIABLE}")
    try:
        text = file.read_bytes().decode("ascii", "replace")
    except OSError as error:
        raise ConfigurationError(f"token file {file} cannot be read: {error.strerror}") from error
    return checked_token(text.strip(), f"token file {file}")


def is_loopback(address: str) -> bool:
    """Whether only processes of this machine reach an IP address."""
    return ip_address(address).is_loopback


class Access:
    """The rules for a request. A browser can send one for a web page of another site, but not with these headers.

    `names`: the names and addresses by which clients reach the service, besides those of loopback. `token`: what every
    request must present, None if none has to.
    """

    def __init__(self, names: Collection[str], token: str | None) -> None:
        self._names = {name.lower() for name in (*LOCAL_NAMES, *names) if name}
        self._token = None if token is None else token.encode()

    def check(self, headers: Message, local_address: str) -> None:
        """Raise RefusalError for a request that is not served. `local_address`: of the connection, at this end."""
        self._check_host(_only("Host", headers) or "", local_address)
        self._check_origin(_only("Origin", headers), _only("Host", headers))
        self._check_form(_only("Content-Type", headers))
        self._check_token(_only("Authorization", headers) or "")

    def _check_host(self, host: str, local_address: str) -> None:
        found = _HOST.fullmatch(host)
        name = "" if found is None else str(found[1] or found[2]).lower()
        if name not in self._names and name != local_address:
            raise RefusalError(421, f"Host: got {ascii(host)[:100]}, expected the address of this service")

    def _check_origin(self, origin: str | None, host: str | None) -> None:
        if origin is not None and origin.lower() != f"http://{host}".lower():
            raise RefusalError(403, f"Origin: got {ascii(origin)[:100]}, expected none")

    def _check_form(self, form: str | None) -> None:
        if form is None or form.partition(";")[0].strip().lower() != "application/json":
            raise RefusalError(415, f"Content-Type: got {ascii(form)[:100]}, expected application/json")

    def _check_token(self, presented: str) -> None:
        if self._token is None:
            return
        scheme, token = presented[: len(_SCHEME)], presented[len(_SCHEME) :]
        if scheme.lower() != _SCHEME or not compare_digest(token.encode("utf-8", "surrogateescape"), self._token):
            raise RefusalError(401, "Authorization: expected Bearer and the token of this service")


def _only(name: str, headers: Message) -> str | None:
    """The value of a header, None if it is absent. Raises RefusalError if it occurs more than once."""
    values: Sequence[str] = headers.get_all(name, [])
    if len(values) > 1:
        raise RefusalError(400, f"{name}: got {len(values)} headers, expected one")
    return values[0] if values else None
