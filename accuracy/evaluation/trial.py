"""Trial: run all passes of a model, its tasks and a cache, compare each with the first one, and report them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from hicache.testing.load import load_adapter
from hicache.types import Component, Tier

from ..answers import GATES
from ..models.recipe import RECIPES
from .comparison import ComparedPass, compared, differences, missing_hits, missing_partial_hits, nats_between
from .documents import VARIANTS
from .evaluate import ScoredPass
from .passes import CacheSize, Passes, pass_without, uncached_pass
from .processes import ask_new_process, ask_ranks, compared_ranks
from .subject import Subject

BATCH_SIZES: Mapping[torch.dtype, int] = {torch.float32: 8, torch.bfloat16: 1}
"""By dtype, how many requests one forward computes by default.

In bfloat16 padding rounds so coarsely that a generated text may rightly go on in another way.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """`passes`: of the subject, over a cache of this process. `ranks`: how many run passes as a group, 1 for no group.

    `controls`: whether to run passes at the end that lose the data of one component each.
    """

    subject: Subject
    passes: Passes
    ranks: int
    controls: bool

    def run(self) -> Iterator[ComparedPass]:
        """Run the first pass, one without a cache, and one from each tier; a new process runs that from storage.

        In float32 also a pass with storage faults and one after them. In other dtypes they are left out: lost tokens
        are computed in other chunks, and rounding may change a generated text. Then the passes of several ranks, and
        the control passes.
        """
        first = self._ask()
        yield compared("first", first, first, ())
        dtype = self.subject.dtype
        uncached = uncached_pass(self.passes.setup.model.runner, first)
        yield compared(
            "one forward", first, uncached, [*differences("one forward", dtype, first, uncached, same_bytes=False)]
        )
        for tier in (Tier.DEVICE, Tier.HOST):
            self.passes.drop_above(tier)
            yield self._from_tier(tier.value, tier, first, self._ask(), same_bytes=True)
        with self.passes.released():
            later = ask_new_process(self.subject, self.passes.folder, first)
        yield self._from_tier("storage", Tier.STORAGE, first, later, same_bytes=True)
        if dtype is torch.float32:
            self.passes.reopen_with_faults()
            yield self._through_faults(first)
            self.passes.drop_above(Tier.STORAGE)
            yield self._from_tier("after faults", Tier.STORAGE, first, self._ask(), same_bytes=False)
        if self.ranks > 1:
            with self.passes.released():
                by_rank = ask_ranks(self.subject, self.ranks, first)
            yield from compared_ranks(first, by_rank, dtype, self.subject.size.page_size)
        if self.controls:
            yield from control_passes(self.passes, self._ask, first)

    def _ask(self) -> ScoredPass:
        return self.subject.ask(self.passes)

    def _from_tier(
        self, name: str, tier: Tier, first: ScoredPass, later: ScoredPass, *, same_bytes: bool
    ) -> ComparedPass:
        problems = [*differences(name, self.subject.dtype, first, later, same_bytes=same_bytes)]
        problems += missing_hits(name, tier, self.subject.size.page_size, later)
        return compared(name, first, later, problems)

    def _through_faults(self, first: ScoredPass) -> ComparedPass:
        later = self._ask()
        problems = [*differences("faults", torch.float32, first, later, same_bytes=False)]
        problems += missing_partial_hits("faults", self.subject.size.page_size, later)
        return compared("faults", first, later, problems)


def control_passes(passes: Passes, ask: Callable[[], ScoredPass], first: ScoredPass) -> Iterator[ComparedPass]:
    """A pass for each component and tier. It has a problem if the loss stays within the gates.

    Run these passes last: afterwards the cache holds data that was computed from zeros.
    """
    gate = GATES[passes.setup.model.layout.dtype]
    page_size = passes.setup.config.page_size
    ask()  # brings everything from storage to the device, in case the cache was reopened before
    for component in map(Component, passes.setup.config.components):
        for tier in Tier:
            lossy = pass_without(component, tier, passes, ask)
            name = f"{tier.value}, without {component.value}"
            problems = [*missing_hits(name, tier, page_size, lossy)]
            nats = nats_between(first, lossy)
            if float(nats.mean()) <= gate.mean and float(nats.max()) <= gate.worst:
                problems.append(
                    f"{name}: the loss has no effect: expected over {gate}, got {float(nats.mean()):.1e} nats a token"
                )
            yield compared(name, first, lossy, problems)


def measure(  # noqa: PLR0913 - one keyword for each choice
    adapter: str,
    *,
    model: str,
    tasks: Sequence[str],
    include_path: Path | None,
    documents: int | None,
    dtype: str,
    device: str,
    sizes: Sequence[int],
    chats: bool,
    ranks: int,
    controls: bool,
    batch_size: int | None,
    folder: Path,
) -> Iterator[ComparedPass]:
    """Yield each pass when it has ended. `sizes`: tokens of a page and of a chunk, capacity of FULL and of MAMBA.

    `batch_size`: None for the default of the dtype.
    """
    kind = getattr(torch, dtype)
    rows = BATCH_SIZES[kind] if batch_size is None else batch_size
    subject = Subject(
        model, tuple(tasks), include_path, documents, kind, device, chats, CacheSize(*sizes), adapter, rows
    )
    with closing(subject.passes(load_adapter(adapter), folder)) as passes:
        yield from Trial(subject, passes, ranks, controls).run()


def own_tasks(model: str) -> list[str]:
    """The default tasks of a trained model: all that it was trained on, and their variants. Empty for other models."""
    if model not in RECIPES:
        return []
    learnt = RECIPES[model].tasks
    return [*(one.name for one in learnt), *(name for name, task in VARIANTS.items() if task in learnt)]
