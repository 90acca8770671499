"""Secrets: SecretText, the value of a secret option, which `repr` does not show; redacted: a text without them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SECRET = "<secret>"  # noqa: S105 - it stands for one
"""What stands for the value of a secret option."""

MIN_REDACTED = 6
"""Shorter values are not looked for in texts: they would be found in other words."""

_RECOGNISED = 32
"""The start or the end of a longer secret that is recognised: what shows long texts may cut them in the middle."""

_forms: set[str] = set()
"""How the secrets that this process was given can stand in a text."""


class SecretText(str):
    """A text whose `repr` does not show it. `str` and everything else are those of the text."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        """Remember the text, for `redacted`."""
        if len(text) >= MIN_REDACTED:
            plain = "".join(text)
            # Verbatim, as `repr` writes it, and as JSON does.
            _forms.update((plain, repr(plain)[1:-1], json.dumps(plain)[1:-1]))

    def __repr__(self) -> str:
        return SECRET


def concealed(value: Any) -> Any:
    """The value, with each text in it as SecretText."""
    if isinstance(value, str):
        return SecretText(value)
    if isinstance(value, Mapping):
        return {name: concealed(one) for name, one in value.items()}
    return [concealed(one) for one in value] if isinstance(value, list | tuple) else value


def any_secrets() -> bool:
    """Whether this process was given any secret that `redacted` looks for."""
    return bool(_forms)


def redacted(text: str) -> str:
    """The text with `<secret>` for each secret that this process was given, of at least MIN_REDACTED characters."""
    # The longest first: one secret may be a part of another.
    forms = sorted(_forms, key=len, reverse=True)
    for form in forms:
        text = text.replace(form, SECRET)
    for form in forms:
        text = _without_start(text, form, SECRET)
        text = _without_start(text[::-1], form[::-1], SECRET[::-1])[::-1]
    return text


def _without_start(text: str, form: str, sign: str) -> str:
    """The text with the sign for each start of a secret, as far as it goes."""
    at = 0
    while (at := text.find(form[:_RECOGNISED], at)) >= 0:
        pairs = enumerate(zip(text[at : at + len(form)], form, strict=False))
        length = next((number for number, (found, own) in pairs if found != own), min(len(form), len(text) - at))
        text = text[:at] + sign + text[at + length :]
        at += len(sign)
    return text
