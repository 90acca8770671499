"""Patience: how long a request waits for what is fetched for it."""

from __future__ import annotations

from hicache.clock import Clock
from hicache.config import StorageConfig
from hicache.parallel.agree import Agreement
from hicache.types import StopPolicy


class Patience:
    """The stop policy of one cache, on its clock and on those of the other ranks."""

    def __init__(self, config: StorageConfig, page_size: int, clock: Clock, agreement: Agreement) -> None:
        self._policy = config.stop_policy
        self._base_s = config.extra.prefetch_timeout_base
        self._page_s = config.extra.prefetch_timeout_per_ki_token * page_size / 1024
        self._cap_s = config.timeout_cap_s
        self._clock = clock
        self._agreement = agreement

    def deadline_s(self, pages: int) -> float:
        """When a prefetch of so many pages that begins now is waited for no longer, by the policy `timeout`."""
        return self._clock.now() + min(self._cap_s, self._base_s + pages * self._page_s)

    def is_over(self, deadline_s: float) -> bool:
        """Whether a prefetch under way is waited for no longer."""
        if self._policy is StopPolicy.TIMEOUT:
            return self._agreement.is_over(is_over=self._clock.now() >= deadline_s)
        return self._policy is StopPolicy.BEST_EFFORT
