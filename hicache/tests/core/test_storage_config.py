"""StorageConfig: what cannot be a storage tier is refused, with the field and its value."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hicache.config import ExecutorKind, StorageConfig
from hicache.errors import ConfigurationError
from hicache.types import StopPolicy

VALID = StorageConfig(
    backend="memory",
    model="org/model",
    stop_policy=StopPolicy.TIMEOUT,
    timeout_cap_s=30,
    limit_tokens=1024,
    executor=ExecutorKind.THREADED,
)

REFUSED: list[tuple[str, Any]] = [
    ("backend", ""),
    ("model", ""),
    *[("timeout_cap_s", value) for value in (-1, math.nan, math.inf, True, "30", None)],
    *[("limit_tokens", value) for value in (0, -1, True, 1.5)],
    ("executor", ExecutorKind.STREAMS),
]


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=[f"{field}={value!r}" for field, value in REFUSED])
def test_what_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        replace(VALID, **{field: value})


def test_a_name_says_what_differs() -> None:
    elsewhere = replace(VALID, backend="package.module:TheirStorage")
    assert elsewhere.name == "TheirStorage-timeout-threaded", f"without the path of the class, got {elsewhere.name}"
