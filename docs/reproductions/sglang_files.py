"""SGLang 0.5.23, HiCacheFile: a file that is too short or too long, files that stay, and a clear of another model.

It needs SGLang alone, no GPU and no model. Run it with `python docs/reproductions/sglang_files.py`.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
import tempfile
from pathlib import Path

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig


def opened(folder: str, model: str = "model") -> HiCacheFile:
    """A store for one model, as SGLang's cache controller opens it on one rank."""
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name=model,
        extra_config={},
    )
    return HiCacheFile(config, folder)


def page(number: int, size: int = 4096) -> torch.Tensor:
    """A page whose bytes are all the same."""
    return torch.full((size,), number, dtype=torch.uint8)


def read(store: HiCacheFile, keys: list[str], size: int = 4096) -> object:
    """The first byte of each page, or None for a page that is missed; or what was raised."""
    try:
        found = store.batch_get(keys, [page(0, size) for _ in keys])
    except OSError as error:
        return f"raised {type(error).__name__}: {error}"
    return [None if one is None else f"{one[0]}, {len(one)} bytes" for one in found]


def write_until_killed(folder: str) -> None:
    """Store a page of 1 MiB where the system kills a process that writes more than 256 KiB into a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, 256 << 10))
    opened(folder).set("large", page(1, 1 << 20))


def main() -> None:
    """Show each of them in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        print("a file that was cut to half of the page")
        store = opened(folder)
        store.batch_set(["p0", "p1", "p2"], [page(0), page(1), page(2)])
        (cut,) = Path(folder).glob("p1_*.bin")
        cut.write_bytes(cut.read_bytes()[:2048])
        print("  exists p1      ", store.exists("p1"))
        print("  get p0, p1, p2 ", read(store, ["p0", "p1", "p2"]))
        print("  set p1         ", store.batch_set(["p1"], [page(1)]), "and the file has", cut.stat().st_size, "bytes")

    with tempfile.TemporaryDirectory() as folder:
        print("a page of 4096 bytes, read into 1024")
        store = opened(folder)
        store.set("p0", page(7))
        print("  get            ", read(store, ["p0"], size=1024))

    with tempfile.TemporaryDirectory() as folder:
        print("two models in one folder, of which one calls clear")
        store = opened(folder, "first")
        store.set("p0", page(7))
        opened(folder, "second").clear()
        print("  exists of the other model", store.exists("p0"))

    with tempfile.TemporaryDirectory() as folder:
        print("twelve writers are killed while they write a page")
        for _ in range(12):
            writer = multiprocessing.Process(target=write_until_killed, args=(folder,))
            writer.start()
            writer.join()
        opened(folder).set("p0", page(7))
        left = [one.stat().st_size for one in Path(folder).glob(".*.tmp")]
        print(f"  {len(left)} files .tmp with {sum(left)} bytes stay")


if __name__ == "__main__":
    main()
