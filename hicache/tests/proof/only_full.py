"""Which mutants `make test` does not find, and why. `tox` finds all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.plugin.options import DEFAULT_ADAPTER
from hicache.tests.proof.mutant_table import MUTANTS
from hicache.tests.proof.mutants.weak_keys import DOUBLES

OTHER_CACHE = "in another cache of the kit: `make test` runs whole suites on the reference alone"


def only_full() -> Mapping[str, Sequence[str]]:
    """The names of the mutants, by the reason. A double with weak keys counts once, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for mutant in MUTANTS:
        if mutant.full_only:
            found[mutant.full_only].append(mutant.slug)
        elif mutant.adapter != DEFAULT_ADAPTER and not mutant.quick_test:
            found[OTHER_CACHE].append(mutant.slug)
    others = [name for name, double in DOUBLES.items() if not issubclass(double.bases[0], ReferenceAdapter)]
    found[OTHER_CACHE] += [f"{name} of weak_keys.py" for name in others]
    return found
