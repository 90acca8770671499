"""Layers that two parts of a pipeline stage count from different ends."""

from __future__ import annotations

from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.tiers.load_back import LoadBackTicket
from hicache.types import Pool


class LayersOfTheModel(ReferenceAdapter):
    """On a later stage a reader takes a layer for one of the whole model, and subtracts the stage's first layer."""

    def layer_ready(self, ticket: LoadBackTicket, pool: Pool, layer: int) -> bool:
        first = self.cache.config.topology.pp_rank * self._host.layers
        return self.stack_layer(pool, layer) - first < self.cache.layers_done(ticket)
