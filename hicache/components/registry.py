"""The components by name, in rank order. A new one is one file and one entry here."""

from __future__ import annotations

from hicache.components.base import TreeComponent
from hicache.components.full import FullComponent
from hicache.components.mamba import MambaComponent
from hicache.components.swa import SwaComponent

REGISTRY: dict[str, type[TreeComponent]] = {
    component.name: component for component in (FullComponent, SwaComponent, MambaComponent)
}
