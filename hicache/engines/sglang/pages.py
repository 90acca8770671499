"""The storage below SGLang's cache in the suites: HicacheStorage behind a gate, and under the names of SGLang's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hicache.config import StorageConfig
from hicache.engines import below_sglang
from hicache.engines.sglang.imports import prepare_sglang
from hicache.engines.sglang.workers import Gate
from hicache.storage.base import Pieces

T = TypeVar("T")

GATED = "GatedStorage"
"""A subclass of GatedPages and HicacheStorage."""

OPENED = (__name__, GATED)
"""The class that SGLang opens: its module, and its name there."""


class GatedPages(below_sglang.HostPoolPages):
    """Each call passes `gate`. It is like SGLang's own backends, unless `is_like_builtin` is False.

    Names of pages have only what SGLang tells all its backends, and exceptions and answers of the backend reach SGLang
    unchanged. So a test finds what is lost where a name lacks the dtype and the layout, where an exception ends a
    thread, and where an answer is not checked.
    """

    is_like_builtin = True

    def __init__(self, *arguments: Any) -> None:
        self.gate = Gate(is_open=True)
        super().__init__(*arguments)

    def meaning_of(self, host: Any) -> str:
        return "told" if self.is_like_builtin else super().meaning_of(host)

    def _asked(self, ask: Callable[[], T], lost: T) -> T:
        return ask() if self.is_like_builtin else super()._asked(ask, lost)

    def _counted(self, answer: int, keys: int) -> int:
        return answer if self.is_like_builtin else super()._counted(answer, keys)

    def _pass_on(self, verb: str, names: Sequence[str], pages: Sequence[Pieces], before: Sequence[str]) -> list[bool]:
        if not self.is_like_builtin:
            return super()._pass_on(verb, names, pages, before)
        done: list[bool] = getattr(self.backend, verb)(names, pages, before)
        return done

    def batch_exists(self, *arguments: Any, **named: Any) -> int:
        self.gate.enter()
        return super().batch_exists(*arguments, **named)

    def batch_exists_v2(self, *arguments: Any, **named: Any) -> Any:
        self.gate.enter()
        return super().batch_exists_v2(*arguments, **named)

    def batch_get_v1(self, *arguments: Any, **named: Any) -> list[bool]:
        self.gate.enter()
        return super().batch_get_v1(*arguments, **named)

    def batch_set_v1(self, *arguments: Any, **named: Any) -> list[bool]:
        self.gate.enter()
        return super().batch_set_v1(*arguments, **named)

    def batch_get_v2(self, *arguments: Any, **named: Any) -> dict[str, list[bool]]:
        self.gate.enter()
        return super().batch_get_v2(*arguments, **named)

    def batch_set_v2(self, *arguments: Any, **named: Any) -> dict[str, list[bool]]:
        self.gate.enter()
        return super().batch_set_v2(*arguments, **named)


def backend_options(config: StorageConfig) -> str:
    """SGLang's configuration of its storage, as JSON, so that it opens the configured backend."""
    extra = config.extra
    fields = {
        "backend_name": "hicache",
        "module_path": OPENED[0],
        "class_name": OPENED[1],
        "interface_v1": 1,
        "backend": config.backend,
        "options": dict(extra.options),
        "prefetch_threshold": extra.prefetch_threshold,
        "prefetch_timeout_base": extra.prefetch_timeout_base,
        "prefetch_timeout_per_ki_token": extra.prefetch_timeout_per_ki_token,
        "hicache_storage_pass_prefix_keys": extra.hicache_storage_pass_prefix_keys,
    }
    return json.dumps(fields)


def __getattr__(name: str) -> Any:
    # The base class is SGLang's, which need not be installed to import this module.
    if name != GATED:
        raise AttributeError(name)
    prepare_sglang()
    return type(GATED, (GatedPages, below_sglang.HicacheStorage), {})
