"""environment: the process has the variables during a block, and not after it."""

from __future__ import annotations

import os

import pytest

from hicache.storage.environment import environment

NEW, OLD = "HICACHE_TEST_NEW", "HICACHE_TEST_OLD"


def test_a_block_has_the_variables_and_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NEW, raising=False)
    monkeypatch.setenv(OLD, "before")
    with environment({NEW: "1", OLD: "2"}):
        assert (os.environ[NEW], os.environ[OLD]) == ("1", "2"), "the block has them"
    assert (os.environ.get(NEW), os.environ[OLD]) == (None, "before"), "they are as before the block"


def test_a_block_that_fails_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OLD, "before")
    with pytest.raises(KeyError, match="of the block"), environment({OLD: "2"}):
        raise KeyError("of the block")
    assert os.environ[OLD] == "before", "it is as before the block"
