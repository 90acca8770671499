"""Layers that two parts of a pipeline stage count from different ends."""

from __future__ import annotations

from hicache.stacks import layer_order
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.tiers.load_back import LoadBackTicket
from hicache.types import Pool


class LayersOfTheModel(ReferenceAdapter):
    """On a later stage a reader takes a layer for one of the whole model, and subtracts the stage's first layer."""

    def layer_ready(self, ticket: LoadBackTicket, pool: Pool, layer: int) -> bool:
        specs = {pool: buffers.spec for pool, buffers in self.cache.pools.buffers.items()}
        layers = layer_order(specs)
        place = next(number for number, readers in enumerate(layers) if (pool, layer) in readers)
        first = self.cache.config.topology.pp_rank * len(layers)
        return place - first < self._host.layers_done(ticket)
