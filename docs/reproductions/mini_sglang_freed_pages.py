"""mini-sglang, commit 20fcd7f: pages of a running request are freed, and another request gets them.

Usage: python mini_sglang_freed_pages.py CHECKOUT
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

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
    empty = torch.empty
    # Pinned memory needs a GPU.
    torch.empty = lambda *sizes, pin_memory=False, **options: empty(*sizes, **options)  # type: ignore[assignment]


def main(checkout: str) -> None:
    """Two equal prompts in one batch, and a third request while the second one still decodes."""
    import_cache(checkout)
    core = importlib.import_module("minisgl.core")
    cache = importlib.import_module("minisgl.scheduler.cache")
    pending = importlib.import_module("minisgl.scheduler.utils").PendingReq
    core.set_global_ctx(core.Context(page_size=1))
    page_table = torch.zeros((3, 16), dtype=torch.int32)
    manager = cache.CacheManager(12, 1, page_table, "radix")

    def admit(row: int, tokens: list[int]) -> Any:
        ids, parameters = torch.tensor(tokens, dtype=torch.int32), core.SamplingParams(max_tokens=4)
        handle = manager.match_req(pending(row, ids, parameters)).cuda_handle
        manager.lock(handle)
        return core.Req(
            input_ids=ids,
            table_idx=row,
            cached_len=handle.cached_len,
            output_len=4,
            uid=row,
            sampling_params=parameters,
            cache_handle=handle,
        )

    first, second = admit(0, [1, 2, 3, 4]), admit(1, [1, 2, 3, 4])
    manager.allocate_paged([first, second])
    for request in (first, second):
        request.complete_one()
    with manager.lazy_free_region():
        manager.cache_req(first, finished=False)
        manager.cache_req(second, finished=False)
    read = set(page_table[1, :4].tolist())
    print("the second request reads the pages", sorted(read))
    print("of these are free                 ", sorted(read & set(manager.free_slots.tolist())))
    third = admit(2, [5, 6, 7, 8, 9, 10, 11, 12])
    manager.allocate_paged([third])
    shared = sorted(read & set(page_table[2, :8].tolist()))
    print("a third request gets and writes   ", shared)
    assert not shared, "two running requests have the same pages"


if __name__ == "__main__":
    main(sys.argv[1])
