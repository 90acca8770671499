"""without_secrets: what is written to a report, without the secrets that this process was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from hicache.storage.secrets import any_secrets, redacted

T = TypeVar("T")


def without_secrets(value: T) -> T:
    """The value with each text in it redacted: in tuples, lists, mappings and dataclasses."""
    return _shown(value) if any_secrets() else value


def _shown(value: T) -> T:
    shown: Any = value
    if isinstance(value, str) and not isinstance(value, Enum):
        shown = redacted(value)
    elif isinstance(value, Mapping):
        shown = {name: _shown(one) for name, one in value.items()}
    elif isinstance(value, list | tuple):
        shown = type(value)(map(_shown, value))
    elif is_dataclass(value) and not isinstance(value, type):
        shown = replace(value, **{one.name: _shown(getattr(value, one.name)) for one in fields(value)})
    return shown  # type: ignore[no-any-return]
