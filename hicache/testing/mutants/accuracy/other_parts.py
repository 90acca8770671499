"""OtherParts: the reference cache with a class of its own making in the place of one of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import ClassVar
from unittest.mock import patch

from hicache.config import CacheConfig
from hicache.parallel.group import Group
from hicache.testing.adapters.reference import ReferenceAdapter


class OtherParts(ReferenceAdapter):
    """`parts`: a module, a name in it, and what stands there while the cache is opened."""

    parts: ClassVar[tuple[tuple[ModuleType, str, object], ...]]

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        with ExitStack() as replaced:
            for part in self.parts:
                replaced.enter_context(patch.object(*part))
            super().__init__(config, groups)
