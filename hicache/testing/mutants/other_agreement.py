"""OtherAgreement: the reference cache whose ranks decide in another way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hicache.cache import UnifiedRadixCache
from hicache.config import CacheConfig
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.testing.adapters.reference import ReferenceAdapter


class OtherAgreement(ReferenceAdapter):
    """The reference cache over `agreement_type` in the place of Agreement."""

    agreement_type: ClassVar[type[Agreement]]

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        self._groups = groups or {}
        super().__init__(config, groups)

    def _open_cache(self, agreement: Agreement) -> UnifiedRadixCache:
        return super()._open_cache(self.agreement(self._config, self._groups))

    def agreement(self, config: CacheConfig, groups: Mapping[str, Group]) -> Agreement:
        """How this rank decides with the others."""
        return self.agreement_type(groups)
