"""mini-sglang, commit 20fcd7f: the part of a node that a match ends in is evicted before what was used earlier.

Usage: python mini_sglang_split_time.py CHECKOUT
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import torch


def import_cache(checkout: str) -> None:
    """Let the cache be imported from a checkout without kernels, sockets and models. All else is mini-sglang's own."""
    root = Path(checkout) / "python" / "minisgl"
    for name in ("minisgl", "minisgl.scheduler", "minisgl.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    for module, names in {"misc": ("align_down", "div_ceil", "div_even"), "registry": ("Registry",)}.items():
        for name in names:
            found = getattr(importlib.import_module(f"minisgl.utils.{module}"), name)
            setattr(sys.modules["minisgl.utils"], name, found)
    kernel = types.ModuleType("minisgl.kernel")
    kernel.fast_compare_key = lambda a, b: next(  # type: ignore[attr-defined]
        (at for at, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=False)) if x != y), min(len(a), len(b))
    )
    sys.modules["minisgl.kernel"] = kernel


def main(checkout: str) -> None:
    """Two prompts, a match of the beginning of the first one, and two evictions."""
    import_cache(checkout)
    core = importlib.import_module("minisgl.core")
    radix = importlib.import_module("minisgl.kvcache.radix_cache")
    core.set_global_ctx(core.Context(page_size=1))
    cache = radix.RadixPrefixCache(torch.device("cpu"))

    def array(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    cache.insert_prefix(array(1, 2), array(10, 20))
    cache.insert_prefix(array(3), array(30))
    print("match of [1]: ", cache.match_prefix(array(1)).cuda_handle.cached_len, "token")
    print("evicted first: slot", cache.evict(1).tolist(), "of token 2, which was not used again")
    second = cache.evict(1).tolist()
    print("evicted second: slot", second)
    assert second == [30], "token 1 was used after token 3, and is evicted before it"


if __name__ == "__main__":
    main(sys.argv[1])
