"""without_collection: imports many modules without a search for garbage, as nearly all that they make stays."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MANY_MODULES = 100
"""With so many new modules what there is is left out of later searches: a process can do this only a few times."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Import modules, and search for no garbage meanwhile; nor later in what there is then, if they were many.

    torch makes 400,000 objects. To search them takes a third of the time of a process that does little else: half of it
    during the import, and half at the end of the process.
    """
    is_on, before = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) - before >= MANY_MODULES:
            gc.freeze()
        if is_on:
            gc.enable()
