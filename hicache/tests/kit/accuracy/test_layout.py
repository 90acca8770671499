"""The pool of each layer of a model, the layout of its tensors in slots, and the families that the engine refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from accuracy.answers import check_close, prompt
from accuracy.cache_setup import CHUNK, on_device, served
from accuracy.engine.cache_config import model_shape
from accuracy.engine.model_layout import LayerParts, ModelLayout, Piece, RefusedFamily, from_rows, to_rows
from accuracy.engine.model_runner import ModelRunner
from accuracy.engine.served_model import ServedModel, check_continuation
from accuracy.families import BUG, FAMILIES, REFUSALS, WINDOW
from hicache.errors import ConfigurationError
from hicache.testing.hybrid_model import HybridModel
from hicache.types import Pool

CPU = torch.device("cpu")
FULL, SLIDING = (Pool.KV,), (Pool.SWA,)
STOP, LENGTH = 32, 64

POOLS = {
    "llama": [FULL] * 4,
    "mistral": [SLIDING] * 4,
    "gemma3": [SLIDING, FULL] * 2,
    "qwen3_next": [(Pool.MAMBA,), FULL] * 2,
    "nemotron_h": [(Pool.MAMBA,), (), FULL, (), (Pool.MAMBA,), FULL],
    "falcon_h1": [(Pool.KV, Pool.MAMBA)] * 4,
    "deepseek_v3": [FULL] * 4,
    "deepseek_v32": [(Pool.KV, Pool.INDEXER)] * 4,
    "deepseek_v4": [
        SLIDING,
        (Pool.SWA, "compressor_4", "indexer_4"),
        (Pool.SWA, "compressor_16"),
        (Pool.SWA, "compressor_4", "indexer_4"),
    ],
    "dots3_note": [(Pool.KV, Pool.INDEXER), SLIDING] * 2,
    "lfm3": [(Pool.MAMBA,), SLIDING, (Pool.MAMBA,), FULL],
    "zaya": [(Pool.SWA, Pool.MAMBA), (Pool.KV, Pool.MAMBA)] * 2,
}


def pools_of(parts: LayerParts) -> tuple[str, ...]:
    attention = () if parts.attention is None else (parts.attention.pool,)
    index = () if parts.index is None else (Pool.INDEXER,)
    compressed = tuple(part.pool for part in parts.compressors)
    return (*attention, *index, *compressed, *(() if parts.states is None else (Pool.MAMBA,)))


def layout_of(family: str, dtype: torch.dtype = torch.float32) -> ModelLayout:
    return served(family, dtype, "cpu").layout


@pytest.mark.parametrize(("family", "expected"), POOLS.items(), ids=POOLS)
def test_each_layer_is_assigned_to_the_pools_of_its_kind(family: str, expected: list[tuple[str, ...]]) -> None:
    found = [pools_of(parts) for parts in layout_of(family).layers]
    assert found == expected, f"{family}: expected {expected}, got {found}"


@pytest.mark.parametrize("family", ["gemma3", "mistral", "zaya", "inkling", "dots3_note", "deepseek_v4"])
def test_a_window_includes_the_token_that_reads(family: str) -> None:
    reach = layout_of(family).window_tokens
    assert reach == WINDOW - 1, (
        f"{family}: expected {WINDOW - 1} tokens before the reading one in a window of {WINDOW}, got {reach}"
    )


def test_a_latent_and_its_rotated_part_differ_in_width() -> None:
    part = layout_of("deepseek_v3").attention[0]
    widths = part.keys.shape, part.values.shape
    assert widths == ((1, 32), (1, 16)), f"expected one latent of 32 and one rotated part of 16, got {widths}"


def test_states_that_accumulate_stay_float32() -> None:
    (part, *_) = layout_of("qwen3_next", torch.bfloat16).states
    found = {field.kind: field.piece.dtype for field in part.fields}
    assert found == {"conv": torch.bfloat16, "recurrent": torch.float32}, (
        f"expected its own dtype for each, got {found}"
    )


@pytest.mark.parametrize("family", POOLS)
def test_slots_hold_the_widest_layer(family: str) -> None:
    layout = layout_of(family)
    shape, size = HybridModel.of(model_shape(layout)), layout.dtype.itemsize
    tokens = [part.size_bytes for part in layout.attention] + [part.projected_bytes for part in layout.compressors]
    widest = max(tokens, default=0)
    assert 2 * shape.kv_heads * shape.head_dim * size >= widest, (
        f"{family}: expected slots of {widest} bytes or more, got {shape}"
    )
    states = max((part.size_bytes("conv") + part.size_bytes("recurrent") for part in layout.states), default=0)
    slot_bytes = shape.conv_elements * size + shape.state_elements * 4
    assert slot_bytes >= states, f"{family}: expected slots of {states} bytes of states or more, got {slot_bytes}"


def test_tensors_come_back_from_rows_in_every_bit() -> None:
    pieces = [Piece((2, 3), torch.bfloat16), Piece((5,), torch.float32)]
    chance = torch.Generator().manual_seed(0)
    tensors = [torch.randn(4, *piece.shape, generator=chance).to(piece.dtype) for piece in pieces]
    width = sum(piece.size_bytes for piece in pieces) + 7
    rows = to_rows(tensors, width)
    assert rows.shape == (4, width), f"expected rows of {width} bytes, got {rows.shape}"
    assert not rows[:, -7:].any(), "expected zeros after the tensors"
    for expected, found in zip(tensors, from_rows(rows, pieces, CPU), strict=True):
        assert torch.equal(expected, found), f"expected {expected}, got {found}"


def test_each_row_holds_one_slot() -> None:
    first, second = torch.arange(4, dtype=torch.uint8)[:, None], torch.arange(4, 8, dtype=torch.uint8)[:, None]
    rows = to_rows([first, second], 2)
    assert np.array_equal(rows, [[0, 4], [1, 5], [2, 6], [3, 7]]), f"expected one row for each slot, got {rows}"


@pytest.mark.parametrize("family", ["qwen3_next", "zaya", "lfm2"])
def test_a_layout_that_lacks_a_state_is_refused(family: str) -> None:
    model = served(family, torch.float32, "cpu")
    first, *others = model.layout.layers
    without_state = ModelLayout((replace(first, states=None), *others), model.layout.dtype)
    with pytest.raises(RefusedFamily, match="do not cache everything that it needs to continue"):
        check_continuation(model.runner, without_state)


def test_a_window_reaches_the_tokens_of_the_last_entries() -> None:
    family = FAMILIES["deepseek_v4"]
    narrow = replace(family, options={**family.options, "sliding_window": 4}).open(torch.float32, "cpu")
    layout = ServedModel.of(narrow).layout
    reaches = {part.pool: part.reach for part in layout.compressors}
    expected = {"compressor_4": 4 + 3, "indexer_4": 4 + 3, "compressor_16": 15}
    assert reaches == expected, f"expected the tokens of an open entry, and with overlap of one more, got {reaches}"
    assert layout.window_tokens == 15, (
        f"expected a window of the 15 tokens of an open entry, got {layout.window_tokens}"
    )


@pytest.mark.parametrize("family", ["mistral", "deepseek_v4"])
def test_a_window_wider_than_the_checked_prompt_is_served(family: str) -> None:
    tiny = FAMILIES[family]
    wide = replace(tiny, options={**tiny.options, "sliding_window": 512}).open(torch.float32, "cpu")
    reach = ServedModel.of(wide).layout.window_tokens
    assert reach == 511, f"{family}: expected 511 tokens before the reading one in a window of 512, got {reach}"


@pytest.mark.parametrize("page_size", [1, 8])
def test_pages_that_cut_an_entry_are_refused(page_size: int) -> None:
    model = served("deepseek_v4", torch.float32, "cpu")
    expected = f"page_size={page_size} is not a multiple of tokens_per_entry=.* of pool 'compressor_"
    with pytest.raises(ConfigurationError, match=expected):
        on_device(model, page_size, CHUNK)


def test_a_layout_that_lacks_the_bias_of_an_entry_is_refused() -> None:
    model = served("deepseek_v4", torch.float32, "cpu")
    first, second, *others = model.layout.layers
    compressors = tuple(replace(part, bias=torch.zeros(())) for part in second.compressors)
    without_bias = ModelLayout((first, replace(second, compressors=compressors), *others), model.layout.dtype)
    with pytest.raises(RefusedFamily, match="do not cache everything that it needs to continue"):
        check_continuation(model.runner, without_bias)


def _defects() -> Iterator[object]:
    for name, refusal in REFUSALS.items():
        if refusal.kind == BUG:
            mark = pytest.mark.xfail(raises=AssertionError, reason=f"{refusal.kind}: {refusal.reason}")
            yield pytest.param(name, id=name, marks=mark)


@pytest.mark.parametrize("family", REFUSALS)
def test_an_unsupported_family_is_refused_with_its_reason(family: str) -> None:
    refusal = REFUSALS[family]
    model = refusal.family.open(torch.float32, "cpu")
    with pytest.raises(RefusedFamily) as refused:
        ServedModel.of(model)
    assert refused.value.model_type == refusal.family.model_type, f"expected its name, got {refused.value}"
    assert refusal.reason in refused.value.reason, f"expected {refusal.reason!r} in {refused.value.reason!r}"


@pytest.mark.parametrize("family", list(_defects()))
def test_the_library_continues_correctly_from_its_own_cache(family: str) -> None:
    runner = ModelRunner(REFUSALS[family].family.open(torch.float32, "cpu"))
    tokens, other, cache = prompt(1, LENGTH), prompt(2, LENGTH), runner.new_cache()
    runner.forward(tokens[:STOP], 0, cache)
    # Another request is computed in between: it overwrites state that transformers keeps outside the cache.
    runner.forward(other, 0, runner.new_cache())
    check_close(
        f"{family} after {STOP} tokens",
        torch.float32,
        runner.forward(tokens, 0, None)[STOP:],
        runner.forward(tokens[STOP:], STOP, cache),
    )
