"""LowerTiers: host and storage of one cache, which take over together what has ended on every rank."""

from __future__ import annotations

from hicache.parallel.agree import Agreement
from hicache.tiers.host_tier import HostTier
from hicache.tiers.storage_tier import StorageTier


class LowerTiers:
    """The tiers below the device, as far as there are any. A step is one agreement of the ranks about both."""

    def __init__(self, host: HostTier | None, storage: StorageTier | None, agreement: Agreement) -> None:
        self._host = host
        self._storage = storage
        self._agreement = agreement

    def step(self) -> None:
        """Take over the transfers that have ended, and start those that are queued."""
        if self._host is None:
            return
        of_host = self._host.outcomes()
        of_storage = self._storage.outcomes() if self._storage else []
        started = self._host.controller.started + (self._storage.asked if self._storage else 0)
        agreed = self._agreement.acknowledged(started, [*of_host, *of_storage])
        self._host.step(agreed[: len(of_host)])
        if self._storage is not None:
            self._storage.step(agreed[len(of_host) :])

    def drain(self) -> None:
        """Wait until nothing is under way."""
        self.step()
        while not self._are_idle():
            if self._host is not None:
                self._host.wait()
            if self._storage is not None:
                self._storage.wait()
            self.step()

    def close(self) -> None:
        """End what is under way, and give back threads, files and pinned memory."""
        if self._storage is not None:
            self._storage.close()
        if self._host is not None:
            self._host.close()

    def abort(self) -> None:
        """End what is under way, and free what was on its way."""
        if self._storage is not None:
            self._storage.abort()
        if self._host is not None:
            self._host.abort()

    def _are_idle(self) -> bool:
        if self._storage is not None:
            return self._storage.is_idle
        return self._host is None or not self._host.controller.under_way()
