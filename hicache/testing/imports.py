"""without_collection: imports modules without garbage collection, as nearly all objects that they create stay."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MANY_MODULES = 100
"""With so many new modules the objects are frozen, see `gc.freeze`. A process imports so many only a few times."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection in the block, which imports modules. If they are many, freeze all objects after it.

    torch creates 400,000 objects. To collect garbage among them takes a third of the time of a process that does little
    else: half of it during the import, and half at the end of the process. Frozen objects are never collected.
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
