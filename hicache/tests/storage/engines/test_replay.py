"""A replay of a trace on an engine that is killed or paused in the middle, and goes on later."""

from __future__ import annotations

import pytest

from hicache.testing.traces import SHIPPED_TRACE, Trace

from .conftest import Start
from .replay import replay_with_fault


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "paused"])
def test_a_replay_goes_on_without_an_engine_and_hits_again_when_it_is_back(start: Start, kill: bool) -> None:
    trace = Trace(SHIPPED_TRACE, skip_bad=False, limit=None)
    found = replay_with_fault(start(), trace, page_size=256, kill=kill)
    outcome = found.outcome
    assert outcome.broken is None, f"FLOW-9: no law is violated, got {outcome.broken}"
    assert outcome.storage is not None, "the replay has a storage tier"
    errors = [part.counters["storage_errors"] for part in outcome.storage.parts]
    assert not any(errors), f"STORE-3: the backend answers, and each byte is the one that was stored, got {errors}"
    assert found.audited > 0, "STORE-3: pages were compared"
    assert found.before > 0, "there are hits before the engine fails"
    assert found.gone == 0, f"there are none while it is gone, got {found.gone} tokens"
    assert found.after > 0, "there are hits when it is back"
