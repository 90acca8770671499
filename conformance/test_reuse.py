"""REUSE: what was computed and not evicted is found again, by the prompts that a scheduler sees most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pytest

from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.geometry import Publish
from hicache.types import Key

from .scenario import MAMBA, Scenario

OTHERS = 1000
"""The pages by which the prompts of a test part begin here."""

TAILS = (0, 1, 2, -1)
"""The tokens of a prompt past its last whole page; -1: all of a page but one."""


def prompt(driver: Scenario, pages: Iterable[int], tail: int) -> Key:
    """A prompt of these pages and so many more tokens."""
    return driver.key([*driver.prompt(list(pages)), *range(tail % driver.config.page_size)])


def unit(driver: Scenario) -> int:
    """Where hits can end: at whole pages, and with MAMBA at whole chunks."""
    return math.lcm(driver.geometry.alignment, driver.config.mamba_chunk_size or 1)


def whole(driver: Scenario, tokens: int) -> int:
    """How much of so many tokens a hit can have, in elements of a key."""
    return max(0, tokens - driver.config.bigram) // unit(driver) * unit(driver)


def serve(driver: Scenario, key: Key) -> int:
    """Run a request from its admission to its end, as its scheduler should; how much of it was cached."""
    admission = driver.admit(key)
    assert admission is not None, f"REQ-5: expected a prompt of {len(key.tokens)} tokens to be admitted, got None"
    for tokens in _stops(driver, key, admission):
        driver.checkpoint(admission.request, tokens)
    driver.finish(admission.request)
    return admission.cached_tokens


def _stops(driver: Scenario, key: Key, admission: Admission) -> Sequence[int]:
    """Where the request is checkpointed: where the cache says, or at the end of what the same prompt can use."""
    if admission.keep_at or not driver.has(MAMBA) or Capability.BRANCHING in driver.adapter.capabilities:
        return admission.keep_at
    end = whole(driver, len(key.tokens) - driver.geometry.recomputed_tokens)
    return [end + driver.config.bigram] if end > admission.cached_tokens else []


def require_hit(clause_id: str, driver: Scenario, key: Key, expected: int) -> None:
    """Serve a prompt, of which at least so many elements must be cached."""
    found = serve(driver, key)
    assert found >= expected, (
        f"{clause_id}: {len(key.tokens)} tokens, nothing was evicted: expected {expected} of them cached, got {found}"
    )


def served(driver: Scenario, tail: int) -> Key:
    """A prompt of eight pages and so many more tokens, which a request has computed."""
    skip_without_states(driver)
    key = prompt(driver, range(1, 9), tail)
    serve(driver, key)
    return key


def skip_without_states(driver: Scenario) -> None:
    """Skip where a cache of MAMBA keeps no state but that at the end of a request."""
    if driver.has(MAMBA) and driver.geometry.publish is Publish.REQUEST:
        pytest.skip("the cache keeps a state at the end of a request alone, so that the same prompt has none")


@clause("REUSE-1", needs=(Capability.REQUESTS,), page_sizes=[1, 16, 64], bigram=True, verbs=False)
@pytest.mark.parametrize("tail", TAILS)
def test_the_same_prompt_hits(driver: Scenario, tail: int) -> None:
    key = served(driver, tail)
    expected = whole(driver, len(key.tokens) - driver.geometry.recomputed_tokens)
    for _ in range(3):
        require_hit("REUSE-1", driver, key, expected)


@clause("REUSE-2", needs=(Capability.REQUESTS,), page_sizes=[1, 16, 64], bigram=True, verbs=False)
@pytest.mark.parametrize("tail", TAILS)
def test_a_continuation_hits(driver: Scenario, tail: int) -> None:
    key = served(driver, tail)
    size = driver.config.page_size
    longer = driver.key([*key.tokens, *(OTHERS + number for number in range(2 * size))])
    require_hit("REUSE-2", driver, longer, whole(driver, len(key.tokens)))


@clause("REUSE-3", needs=(Capability.REQUESTS,), page_sizes=[1, 16, 64], bigram=True, verbs=False)
@pytest.mark.parametrize("shared", [1, 4, 7])
def test_prompts_that_part_hit_what_they_share(driver: Scenario, shared: int) -> None:
    skip_without_states(driver)
    if driver.has(MAMBA) and Capability.BRANCHING not in driver.adapter.capabilities:
        pytest.skip("the cache does not say where prompts part: BRANCHING is not declared")
    prompts = [prompt(driver, [*range(1, shared + 1), *range(OTHERS + 9 * n, OTHERS + 9 * n + 3)], 1) for n in range(6)]
    expected = whole(driver, len(driver.prompt(list(range(1, shared + 1)))))
    # With MAMBA the second one computes the state where they part.
    first_hit = 2 if driver.has(MAMBA) else 1
    for number, key in enumerate(prompts):
        require_hit("REUSE-3", driver, key, expected if number >= first_hit else 0)
