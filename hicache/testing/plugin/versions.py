"""VERSIONS: of all that an adapter's author writes against, as this hicache has them; each run records them."""

from __future__ import annotations

from hicache.testing.adapter import INTERFACE_VERSION
from hicache.testing.contract import CONTRACT_VERSION
from hicache.testing.plugin.known_failures import KNOWN_FAILURES_FORMAT
from hicache.testing.report.run import Versions

VERSIONS = Versions(INTERFACE_VERSION, CONTRACT_VERSION, KNOWN_FAILURES_FORMAT)
