"""KEY-7: a prompt is served only what was computed for all of its tokens, in their order, in its namespace.

The tests need no look at hashes or into the cache: they ask how much is found, by requests, by verbs or by both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.geometry import GeometricConfig
from hicache.types import SHARED, Key, Media, Namespace, Pool, StopPolicy

from .near_prompts import EMPTY_NAMES, SIMILAR_NAMESPACES, Page, base_pages, joined_pages, near_pages
from .scenario import FULL, Scenario, open_standard

OPENING = 9
"""The first token of a prompt with bigram keys, before its pages."""

TAIL = 7
"""A token after the last whole page: an admission may have to compute one."""

LONG = 1100
"""Pages of a long prompt: numpy prints of an array with more than 1,000 elements the first and last three alone."""

MANY = 1200
"""So many prompts, or namespaces, that among digests of 16 bits ten are equal on average."""


def tokens_of(driver: Scenario, *pages: Page, opening: int = OPENING) -> list[int]:
    """The tokens of a prompt of these pages."""
    return [*([opening] if driver.config.bigram else []), *(token for page in pages for token in page)]


def compute(driver: Scenario, key: Key) -> None:
    """Cache a prompt of whole pages, by verbs or by a request."""
    if Capability.VERBS in driver.adapter.capabilities:
        driver.put(key)
        return
    admission = driver.admit(key)
    assert admission is not None, f"REQ-5: nothing else runs: expected {len(key.tokens)} tokens to be admitted"
    driver.finish(admission.request)
    driver.drain()


def found(driver: Scenario, key: Key) -> int:
    """How many elements of a prompt are found, by a match or a look-up: the larger number if there are both."""
    lengths: list[int] = []
    if Capability.VERBS in driver.adapter.capabilities:
        match = driver.adapter.match(key, chunked=True)
        lengths.append(len(match.device_indices) + match.host_hit_length)
    if Capability.REQUESTS in driver.adapter.capabilities:
        lengths.append(driver.adapter.lookup(key))
    return max(lengths)


def require(driver: Scenario, tokens: Sequence[int], most: int, why: str, namespace: Namespace = SHARED) -> None:
    """KEY-7: at most so many pages of a prompt are found."""
    pages, rest = divmod(found(driver, driver.key(tokens, namespace)), driver.config.page_size)
    assert pages <= most, f"KEY-7: {why}: expected {most} pages of {list(tokens)} in {namespace}, got {pages}"
    assert not rest, f"KEY-1: expected whole pages of {list(tokens)}, got {rest} tokens more"


def require_admission(driver: Scenario, tokens: Sequence[int], most: int, why: str) -> None:
    """KEY-7: a request is given at most so many pages. With BYTES the driver compares them with the prompt's."""
    if Capability.REQUESTS not in driver.adapter.capabilities:
        return
    admission = driver.admit(driver.key([*tokens, TAIL]))
    assert admission is not None, f"REQ-5: nothing else runs: expected {len(tokens) + 1} tokens to be admitted"
    pages = (admission.cached_tokens + admission.copied_tokens) // driver.config.page_size
    driver.abort(admission.request)
    assert pages <= most, f"KEY-7: {why}: expected a request of {list(tokens)} to be given {most} pages, got {pages}"


def require_found(driver: Scenario, key: Key) -> None:
    """MATCH-1: all of a prompt is found that was computed before."""
    expected, count = driver.elements(key), found(driver, key)
    assert count == expected, f"MATCH-1: the prompt was computed: expected {expected} tokens of it, got {count}"


def unlike(page: Page, other: Page) -> str:
    """Where a page differs from a cached one."""
    places = [at for at, (cached, token) in enumerate(zip(page, other, strict=True)) if cached != token]
    asked, cached = [other[at] for at in places], [page[at] for at in places]
    return f"at positions {places} of the page its tokens are {asked}, those of the cached page are {cached}"


@clause("KEY-7", "MATCH-1", bigram=True, verbs=False)
def test_a_page_is_found_by_all_of_its_tokens(driver: Scenario) -> None:
    for page in base_pages(driver.config.page_size):
        key = driver.key(tokens_of(driver, page, page))
        compute(driver, key)
        require_found(driver, key)
        near = near_pages(page)
        for common, pages in near.items():
            for other in pages:
                why = f"{unlike(page, other)}, and it agrees with that page in {common}"
                require(driver, tokens_of(driver, other, page), 0, why)
                require(driver, tokens_of(driver, page, other), 1, why)
        # Some caches find from then on what was admitted, so that each of these is admitted once.
        for other in {next(iter(pages)) for pages in near.values()}:
            require_admission(driver, tokens_of(driver, other, page), 0, "it is similar to a cached page")


@clause("KEY-7", needs=[Capability.PAGED], verbs=False)
def test_tokens_that_are_equal_once_they_are_joined_are_told_apart(driver: Scenario) -> None:
    for first, second in joined_pages(driver.config.page_size):
        compute(driver, driver.key(first))
        why = f"{list(first)} is cached, the same page once ids are joined, or zeros or repeated ids are dropped"
        require(driver, second, 0, why)


@clause("KEY-7", "MATCH-1", bigram=True, verbs=False)
def test_a_page_is_found_after_all_pages_before_it(driver: Scenario) -> None:
    for cached in ([1, 2], [3, 4], [5, 1, 6], [7, 1, 8]):
        compute(driver, driver.key_of(cached))
        require_found(driver, driver.key_of(cached))
    for pages, most in (
        *(([1, 4], 1), ([3, 2], 1), ([2], 0), ([4, 4], 0), ([2, 1], 0), ([6], 0)),
        *(([5, 1, 8], 2), ([7, 1, 6], 2), ([1, 6], 1), ([1, 1], 1), ([1, 1, 6], 1), ([1, 2, 2], 2), ([3, 3, 4], 1)),
    ):
        require(driver, driver.prompt(pages), most, "each page was computed after other pages alone")


@clause("KEY-7", "KEY-3", needs=[Capability.BIGRAM], verbs=False)
def test_a_pair_is_both_of_its_tokens_in_their_order(driver: Scenario) -> None:
    size = driver.config.page_size
    page = base_pages(size)[0]
    compute(driver, driver.key(tokens_of(driver, page, page)))
    require(driver, tokens_of(driver, page, page, opening=OPENING + 1), 0, "the first token of the first pair differs")
    last = (*page[:-1], page[-1] + 1)
    require(driver, tokens_of(driver, page, last), 1, "the last token of the last pair differs")
    turned = [list(islice(cycle(pair), size + 1)) for pair in ((100, 101), (101, 100))]
    compute(driver, driver.key(turned[0]))
    require(driver, turned[1], 0, "of each cached pair it has the tokens in the other order")


@clause("KEY-7", "KEY-2", "SEC-1", "MATCH-1", bigram=True, verbs=False)
def test_a_prompt_is_found_in_exactly_its_namespace(driver: Scenario) -> None:
    for number, group in enumerate(SIMILAR_NAMESPACES):
        compute_in_each(driver, driver.prompt([number + 1]), group)


@clause("KEY-7", "KEY-2", "SEC-1", needs=[Capability.NAMESPACES], components=[FULL], verbs=False, alone=True)
def test_an_empty_name_is_not_an_absent_one(driver: Scenario) -> None:
    compute_in_each(driver, driver.prompt([1]), EMPTY_NAMES)


def compute_in_each(driver: Scenario, tokens: Sequence[int], namespaces: Sequence[Namespace]) -> None:
    """Compute a prompt in one namespace after the other, each of which must find nothing before, and then all."""
    for number, namespace in enumerate(namespaces):
        require(driver, tokens, 0, f"it was computed in {namespaces[:number]}", namespace)
        compute(driver, driver.key(tokens, namespace))
        require_found(driver, driver.key(tokens, namespace))


@contextmanager
def open_roomy(adapter_type: type[CacheAdapter]) -> Iterator[Scenario]:
    """A cache with room for MANY prompts of one page twice."""
    listed = adapter_type.configurations()
    if listed is None:
        driver = open_standard(adapter_type, "full/page1/lru", capacity_tokens={FULL: 2 * MANY})
    else:
        config = next((one for one in listed if isinstance(one, GeometricConfig) and one.components == (FULL,)), None)
        if config is None:
            pytest.skip(f"{adapter_type.__name__} lists configurations of fixed sizes alone")
        config = config.with_blocks(2 * MANY * config.page_size // config.geometry.finest)
        if config.host is not None:
            config = replace(config, host=replace(config.host, capacity_tokens={FULL: 2 * MANY * config.page_size}))
        driver = Scenario(adapter_type(config), config)
    # The laws look at the whole cache, and would do so thousands of times.
    driver.check_every = 0
    yield driver
    driver.adapter.close()


def compute_unseen(driver: Scenario, key: Key) -> None:
    """Cache a prompt of whole pages; with requests alone no byte is written, and none is read."""
    if Capability.VERBS in driver.adapter.capabilities:
        driver.put(key)
        return
    admission = driver.adapter.admit(key)
    assert admission is not None, f"REQ-5: nothing else runs: expected {len(key.tokens)} tokens to be admitted"
    driver.adapter.finish(admission.request)


@clause("KEY-7", verbs=False)
def test_among_many_prompts_no_two_share_a_page(adapter_type: type[CacheAdapter]) -> None:
    with open_roomy(adapter_type) as driver:
        page = base_pages(driver.config.page_size)[1]
        prompts = [[2_654_435_761 * number % 2**31, *page[1:]] for number in range(MANY)]
        for number, tokens in enumerate(prompts):
            require(driver, tokens, 0, f"{number} other prompts are cached: do two have one digest?")
            compute_unseen(driver, driver.key(tokens))
        for tokens in prompts[::2]:
            compute_unseen(driver, driver.key([*tokens, *page]))
        for tokens in prompts[1::2]:
            require(driver, [*tokens, *page], 1, "its second page is cached after other pages: do two have one digest?")


@clause("KEY-7", "MATCH-1", verbs=False)
def test_a_page_is_found_after_all_pages_before_it_however_many_there_are(adapter_type: type[CacheAdapter]) -> None:
    with open_roomy(adapter_type) as driver:
        for count, place in ((9, 0), (9, 4), (LONG, LONG // 2)):
            pages = [page_at(driver, 10 * count + number) for number in range(count)]
            other = [*pages[:place], page_at(driver, place), *pages[place + 1 :]]
            compute_all_but_one(driver, (pages, SHARED), (other, SHARED), f"page {place} of {count} differs")


@clause("KEY-7", "KEY-2", "MATCH-1", needs=[Capability.NAMESPACES], verbs=False)
def test_each_page_of_a_long_prompt_belongs_to_its_namespace(adapter_type: type[CacheAdapter]) -> None:
    with open_roomy(adapter_type) as driver:
        pages = [page_at(driver, number) for number in range(9)]
        for namespace in (Namespace(lora="a", salt=None, tenant=None), Namespace(lora=None, salt="a", tenant=None)):
            compute_all_but_one(driver, (pages, SHARED), (pages, namespace), "the namespace differs")


def page_at(driver: Scenario, number: int) -> Page:
    """A page of its own for each number."""
    return (number, *base_pages(driver.config.page_size)[1][1:])


def compute_all_but_one(
    driver: Scenario, cached: tuple[list[Page], Namespace], other: tuple[list[Page], Namespace], why: str
) -> None:
    """Compute a prompt, and of another one all pages but the last, which is equal and must not be found there."""
    (pages, namespace), (other_pages, other_namespace) = cached, other
    compute_unseen(driver, driver.key(tokens_of(driver, *pages), namespace))
    begin = driver.key(tokens_of(driver, *other_pages[:-1]), other_namespace)
    compute_unseen(driver, begin)
    require_found(driver, begin)
    tokens = tokens_of(driver, *other_pages)
    require(driver, tokens, len(pages) - 1, f"{why}, and the last page is cached in the other prompt", other_namespace)


@clause("KEY-7", "KEY-2", "SEC-1", needs=[Capability.NAMESPACES], verbs=False)
def test_among_many_namespaces_no_two_share_a_page(adapter_type: type[CacheAdapter]) -> None:
    with open_roomy(adapter_type) as driver:
        tokens = base_pages(driver.config.page_size)[0]
        for number in range(MANY):
            namespace = replace(SHARED, **{("lora", "salt", "tenant")[number % 3]: f"name-{number}"})
            require(driver, tokens, 0, f"{number} other namespaces have the prompt", namespace)
            compute_unseen(driver, driver.key(tokens, namespace))


# The host and storage.


@clause("KEY-7", needs=[Capability.HOST], components=[FULL], page_sizes=[16], alone=True)
def test_a_page_is_found_on_the_host_by_all_of_its_tokens(driver: Scenario) -> None:
    driver.put_on_host([1, 2])
    assert driver.tier_hits([1, 2]) == (0, 2), (
        f"MATCH-1: expected two pages on the host, got {driver.tier_hits([1, 2])}"
    )
    page = tuple(driver.prompt([1]))
    for common, pages in near_pages(page).items():
        for other in pages:
            why = f"{unlike(page, other)}, and it agrees with that page on the host in {common}"
            require(driver, [*other, *driver.prompt([2])], 0, why)


STORED = [Capability.HOST, Capability.STORAGE]

in_storage = partial(
    clause,
    *("KEY-7", "STORE-1"),
    components=[FULL],
    page_sizes=[16],
    write_policies=[WritePolicy.WRITE_THROUGH],
    stop_policies=[StopPolicy.WAIT_COMPLETE],
    alone=True,
)
"""A test of what is read from storage runs with one policy: the policies differ in when pages move."""


@in_storage(needs=STORED)
def test_a_stored_page_is_read_for_all_of_its_tokens(driver: Scenario) -> None:
    driver.put_in_storage_alone([1, 2])
    page = tuple(driver.prompt([1]))
    for common, pages in near_pages(page).items():
        for other in islice(pages, 4):
            why = f"{unlike(page, other)}, and it agrees with that page in storage in {common}"
            require_nothing_read(driver, driver.key([*other, *driver.prompt([2])]), why)
    require_nothing_read(driver, driver.key_of([2]), "it was stored after another page")


@in_storage("KEY-2", "SEC-3", needs=[*STORED, Capability.NAMESPACES])
def test_a_stored_page_is_read_in_exactly_its_namespace(driver: Scenario) -> None:
    driver.put_in_storage_alone([1, 2])
    for namespace in SIMILAR_NAMESPACES[0]:
        require_nothing_read(driver, driver.key(driver.prompt([1, 2]), namespace), "it was stored in no namespace")


@in_storage("KEY-2", "SEC-3", needs=[*STORED, Capability.NAMESPACES])
def test_a_stored_page_is_not_read_for_an_empty_name(driver: Scenario) -> None:
    driver.put_in_storage_alone([1, 2])
    for namespace in EMPTY_NAMES[1:]:
        require_nothing_read(driver, driver.key(driver.prompt([1, 2]), namespace), "it was stored in no namespace")


def require_nothing_read(driver: Scenario, key: Key, why: str) -> None:
    """KEY-7: a prefetch of a prompt brings nothing, or is refused."""
    ticket = driver.prefetch(key)
    if ticket is None:
        return
    driver.drain()
    tokens, prompt = driver.check_prefetch(ticket), key.tokens.tolist()
    assert not tokens, f"KEY-7: {why}: expected nothing read for {prompt} in {key.namespace}, got {tokens} tokens"


@clause("KEY-7", "STORE-1", needs=[Capability.STORAGE], components=[FULL], verbs=False, alone=True)
def test_no_two_similar_pages_have_one_object(driver: Scenario) -> None:
    size = driver.config.page_size
    page, owner = base_pages(size)[0], dict[str, object]()
    prompts: list[tuple[Sequence[int], Namespace]] = [
        ((*page, *page), SHARED),
        *(((*other, *page), SHARED) for pages in near_pages(page).values() for other in pages),
        *((one, SHARED) for pair in joined_pages(size) for one in pair),
    ]
    if Capability.NAMESPACES in driver.adapter.capabilities:
        prompts += [(page, namespace) for group in SIMILAR_NAMESPACES for namespace in group]
    for prompt in dict.fromkeys((tuple(tokens), namespace) for tokens, namespace in prompts):
        for name in driver.storage_keys(Pool.KV, driver.key(*prompt)):
            assert name not in owner, f"KEY-7: object {name} is that of {prompt} and of {owner[name]}"
            owner[name] = prompt


# KEY-8: media.

PLACEHOLDER = 5
"""The token that stands for any image."""


def with_images(driver: Scenario, *images: Media) -> Key:
    """A prompt of six pages that is placeholders alone."""
    return replace(driver.key([PLACEHOLDER] * 6 * driver.config.page_size), media=images)


def spans(driver: Scenario, *, by: int = 0) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where two images of equal length are: from inside the second page on, and inside the fifth and sixth one."""
    size = driver.config.page_size
    return (size + size // 2 + by, 3 * size + size // 2 + by), (4 * size + by, 6 * size - 1 + by)


@clause("KEY-8", "MATCH-1", verbs=False)
def test_a_prompt_is_found_with_the_same_images_alone(driver: Scenario) -> None:
    (first, last), (moved, _) = spans(driver), spans(driver, by=1)
    page = driver.config.page_size
    key = with_images(driver, Media(*first, "a"), Media(*last, "b"))
    compute(driver, key)
    require_found(driver, key)
    others = {
        "no image": (),
        "another first image": (Media(*first, "c"), Media(*last, "b")),
        "another last image": (Media(*first, "a"), Media(*last, "c")),
        "the images in the other order": (Media(*first, "b"), Media(*last, "a")),
        "the first image alone": (Media(*first, "a"),),
        "the first image one token later": (Media(*moved, "a"), Media(*last, "b")),
        "a first image that is shorter": (Media(first[0], first[1] - 1, "a"), Media(*last, "b")),
    }
    ends = dict.fromkeys(others, first[0])
    ends |= dict.fromkeys(("another last image", "the first image alone"), last[0])
    ends["a first image that is shorter"] = first[1] - 1
    for name, images in others.items():
        count, most = found(driver, with_images(driver, *images)), ends[name] // page * page
        assert count <= most, f"KEY-8: {name}: expected at most {most} tokens, got {count}"
