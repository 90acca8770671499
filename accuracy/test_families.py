"""Every family, restored from every tier and continued with many tokens in one chunk, answers as without a cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.plugin.devices import missing_device
from hicache.types import Tier

from .cache_setup import CHUNK, PAGE, CacheSetup, OpenCache, in_storage, on_device, on_host, served
from .continuations import compute_each, continue_each
from .families import FAMILIES

EDGES = {torch.float32: (15, 16, 17, 31, 32, 33, 49, 97), torch.bfloat16: (33, 97)}
"""Lengths of prompts around pages of 16 and chunks of 32 tokens."""

NARROW_EDGES = (1, 2, 7, 8, 9, 22, 23, 24, 25, 41)
"""Lengths of prompts around pages of one token, chunks of 8, and windows of 23 tokens before the next one."""

LOWER_EDGES = {torch.float32: (17, 33, 97), torch.bfloat16: (97,)}
"""Fewer lengths, for the host and storage."""

NO_GPU = pytest.mark.skipif(bool(missing_device("cuda")), reason=missing_device("cuda"))

each_family = pytest.mark.parametrize("family", FAMILIES)
each_place = pytest.mark.parametrize(
    ("dtype", "device"),
    [
        pytest.param(torch.float32, "cpu", id="float32"),
        pytest.param(torch.bfloat16, "cpu", id="bfloat16"),
        # On a GPU the host tier has pinned memory, and CUDA streams copy the bytes.
        pytest.param(torch.bfloat16, "cuda", id="bfloat16-cuda", marks=[pytest.mark.gpu, NO_GPU]),
    ],
)


@clause("REQ-3")
@each_place
@each_family
def test_the_device_answers_as_no_cache_would(
    family: str, dtype: torch.dtype, device: str, open_cache: OpenCache
) -> None:
    model = served(family, dtype, device)
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    continue_each(setup, compute_each(setup, EDGES[dtype], CHUNK), Tier.DEVICE)


@clause("REQ-3")
@each_family
def test_pages_of_one_token_are_answered_as_no_cache_would(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, 1, 8), open_cache)
    continue_each(setup, compute_each(setup, NARROW_EDGES, 8), Tier.DEVICE)


@clause("HOST-7", "FLOW-10", needs=(Capability.HOST,))
@each_place
@each_family
def test_the_host_answers_as_no_cache_would(
    family: str, dtype: torch.dtype, device: str, open_cache: OpenCache
) -> None:
    model = served(family, dtype, device)
    setup = CacheSetup(model, on_host(model), open_cache)
    firsts = compute_each(setup, LOWER_EDGES[dtype], CHUNK)
    setup.clear_device()
    continue_each(setup, firsts, Tier.HOST)


@clause("HOST-7", "FLOW-9", needs=(Capability.STORAGE,))
@each_place
@each_family
def test_storage_answers_as_no_cache_would(
    family: str, dtype: torch.dtype, device: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    model = served(family, dtype, device)
    setup = CacheSetup(model, in_storage(model, tmp_path), open_cache)
    firsts = compute_each(setup, LOWER_EDGES[dtype], CHUNK)
    setup.restart()
    continue_each(setup, firsts, Tier.STORAGE)
