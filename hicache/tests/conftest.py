"""For the tests of the package: no deadline of Hypothesis, and no search for garbage among what was imported."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

# On a machine with other work an example may take any time.
settings.register_profile("own", deadline=None)
settings.load_profile("own")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freeze what was imported and collected: it stays, and some tests collect garbage again and again."""
    gc.collect()
    gc.freeze()
