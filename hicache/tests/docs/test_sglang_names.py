"""docs/reference/sglang_names.md: each of our names exists, and the names that readers of SGLang look for are there."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from importlib import import_module

import pytest

from hicache.tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "sglang_names.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
OURS = sorted({name for row in ROWS for cell in row[1:] for name in re.findall(r"`([a-z][\w.]*:[\w.]+)`", cell)})

ASKED = (
    *("init_load_back", "create_match_validator", "write_backup_storage", "prefetch_from_storage"),
    *("inc_host_lock_ref", "AccuracyTwoPassMixin", "build_nsa_hybrid_stack", "HybridCacheController"),
)


def exists(name: str) -> bool:
    """Whether a name such as `module:Class.method` or `module:Class.field` can be found."""
    module, _, path = name.partition(":")
    found: object = import_module(module)
    for part in path.split("."):
        fields = found.__dataclass_fields__ if isinstance(found, type) and is_dataclass(found) else {}
        if part not in fields and not hasattr(found, part):
            return False
        found = getattr(found, part, None)
    return True


@pytest.mark.parametrize("name", OURS)
def test_a_name_of_ours_exists(name: str) -> None:
    assert exists(name), f"docs/reference/sglang_names.md: there is no {name}"


@pytest.mark.parametrize("name", ["hicache.cache:UnifiedRadixCache.match_prefix", "hicache.config:PoolShape.pages"])
def test_a_name_that_does_not_exist_is_found(name: str) -> None:
    assert not exists(name), f"{name} exists"


def test_each_row_names_something_here_or_says_none() -> None:
    wrong = [row[0] for row in ROWS if row[1] != "none" and ":" not in row[1]]
    assert not wrong, f"docs/reference/sglang_names.md: no name of ours in the rows of {wrong}"
    assert len(OURS) > 50, f"only {len(OURS)} names were read"


def test_the_names_that_readers_look_for_are_there() -> None:
    named = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[0])}
    missing = [name for name in ASKED if name not in named]
    assert not missing, f"docs/reference/sglang_names.md: {missing} are missing"
