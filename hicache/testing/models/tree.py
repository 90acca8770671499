"""Model: the oracle, a dictionary of page prefixes. It predicts what a cache finds, and shares no code with one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Component, Key, MatchResult, Namespace, Tier, Tokens, TransferKind

ROOT = -1
"""The predecessor of a namespace."""

TIERS = (Tier.DEVICE, Tier.HOST)

Held = dict[str, set[int]]
"""The numbers of the prefixes that a tier holds, by component."""


@dataclass(frozen=True, slots=True)
class ExpectedMatch:
    """What a match must find, in elements: `anchor` on the device alone, `best` on both tiers together.

    `host_hits`: per component the part of what a reader up to `best` needs that is only on the host, as in MatchResult.
    """

    anchor: int
    best: int
    host_hits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ExpectedInsert:
    """What an insert must return, as in InsertResult."""

    prefix_length: int
    accepted_length: int
    state_adopted: bool


class Model:
    """Which pages of which prefixes each tier holds, per component. It has no nodes, no locks and no eviction order.

    A prefix of whole pages has a number. The number is found by the predecessor (the number of the shorter prefix, or
    ROOT) and the tokens of the last page (with bigram keys one token more, which closes the last pair).
    MAMBA is held at a page when the state after that page is held. Without a host tier the host holds nothing.
    """

    def __init__(
        self, *, components: Sequence[str], page_size: int, sliding_window_size: int | None, bigram: bool
    ) -> None:
        self._components = tuple(components)
        self._page_size = page_size
        self._window_pages = -(-(sliding_window_size or 0) // page_size) if Component.SWA in components else 0
        self._closing = 1 if bigram else 0
        self._numbers: dict[tuple[int, Namespace | bytes], int] = {}
        self._steps: list[tuple[int, Namespace | bytes]] = []
        self.held: dict[Tier, Held] = {tier: self._nothing() for tier in TIERS}
        self._arriving: set[int] = set()
        self._announced: Held = self._nothing()

    def expected_match(self, key: Key) -> ExpectedMatch:
        """What a match must find: the deepest page where every component is valid, on the device and on both tiers."""
        pages = self._pages(key)
        anchor, best = (self._deepest(pages, tiers, self._components) for tiers in (TIERS[:1], TIERS))
        needed = {
            Component.FULL.value: pages[:best],
            Component.SWA.value: pages[max(0, best - self._window_pages) : best],
            Component.MAMBA.value: pages[best - 1 : best] if best else [],
        }
        units = {component: 1 if component == Component.MAMBA else self._page_size for component in needed}
        missing = {c: [page for page in needed[c] if page not in self.held[Tier.DEVICE][c]] for c in self._components}
        hits = {component: len(missing[component]) * units[component] for component in self._components}
        return ExpectedMatch(anchor * self._page_size, best * self._page_size, hits)

    def expected_branching(self, key: Key, chunk_tokens: int) -> int | None:
        """The last whole chunk at whose end MAMBA alone is not valid, on both tiers, if a match ends before it."""
        pages = self._pages(key)
        best, reached = (self._deepest(pages, TIERS, names) for names in (self._components, (Component.SWA,)))
        aligned = reached * self._page_size // chunk_tokens * chunk_tokens
        return aligned if aligned > best * self._page_size else None

    def require_refused(self, key: Key, found: MatchResult) -> None:
        """A match says how much shorter it is on both tiers with each component than with those before it."""
        pages, names = self._pages(key), [one.value for one in Component if one in self._components]
        ends = [self._deepest(pages, TIERS, names[:count]) for count in range(1, len(names) + 1)]
        pairs = zip(names[1:], ends, ends[1:], strict=False)
        expected = {name: (before - end) * self._page_size for name, before, end in pairs}
        if {**dict.fromkeys(expected, 0), **found.tokens_refused} != expected:
            raise violation("MATCH-20", f"match of {len(key.tokens)} tokens", expected, found.tokens_refused)

    def insert(self, key: Key, *, shared: int = 0, window_start: int = 0, state: bool = False) -> ExpectedInsert:
        """Record an insert. `shared`: elements whose slots belong to the tree already. `state`: whether one is offered.

        Pages that are only on the host get the new slots. Pages that are on no tier become a leaf, or are refused.
        """
        pages, device = self._pages(key), self.held[Tier.DEVICE]
        resident = self._run(pages, TIERS[:1])
        known = self._run(pages, TIERS)
        first_live = -(-window_start // self._page_size)
        end = len(pages) if self._creates_leaf(pages, known, first_live, state) else known
        if Component.SWA in device:
            # While a load fills the window of slots that the tree has, the tree does not take the request's window.
            arriving = self._arriving.intersection(pages[:resident])
            device[Component.SWA].update(set(pages[max(first_live, shared // self._page_size) : end]) - arriving)
        device[Component.FULL].update(pages[resident:end])
        adopted = state and bool(pages) and end == len(pages) and self._adopts(pages[-1])
        return ExpectedInsert(resident * self._page_size, self.expected_match(key).anchor, adopted)

    def cap_states(self, key: Key, most: int | None, snapshot: Snapshot) -> None:
        """STATE-1: an insert brought the state at the end of a key. `most`: of its path. `snapshot`: what is locked."""
        pages, states = self._pages(key), self.held[Tier.DEVICE].get(Component.MAMBA, set())
        if most is None or not pages or pages[-1] not in states:
            return
        paths, nodes = self._paths(snapshot), snapshot.nodes
        locked = {path[-1] for path, node in zip(paths, nodes, strict=True) if node.locks[Component.MAMBA]}
        continuations = Counter(self._steps[page][0] for page in self._held_on(Component.FULL, TIERS))
        held = [page for page in pages if page in states]
        spare = [page for page in held[:-1] if continuations[page] == 1 and page not in locked]
        states.difference_update(spare[: max(0, len(held) - most)])

    def permit(self, key: Key) -> None:
        """Allow that a request cached any part of its prompt; the next `sync` finds which part."""
        for pages in self.held[Tier.DEVICE].values():
            pages.update(self._pages(key))

    def announce(self, key: Key, present: Mapping[str, Sequence[bool]]) -> None:
        """Allow that stored pages come to the host before the next `sync`. `present`: page by page, by component."""
        for component, are_there in present.items():
            pages = zip(self._pages(key), are_there, strict=True)
            self._announced[component].update(page for page, is_there in pages if is_there)

    def sync(self, snapshot: Snapshot) -> None:
        """Take over the contents of a cache: remove what was evicted, and follow what moved between the tiers.

        Raises InvariantError when a tier holds a page that no tier held before.
        """
        content = self._content(snapshot)
        for tier, by_component in content.items():
            for component, pages in by_component.items():
                known = self.held[Tier.DEVICE][component] | self.held[Tier.HOST][component]
                new = pages - known - (self._announced[component] if tier is Tier.HOST else set())
                if new:
                    place = f"{component} on the {tier.value}"
                    raise violation("EVICT-1", place, "no page that no tier had before", self._named(new))
        self.held, self._announced = content, self._nothing()
        self._arriving = self._window_under_way(snapshot)

    def adopt(self, snapshot: Snapshot) -> None:
        """Take over the contents of a cache without a check."""
        self.held = self._content(snapshot)

    def agrees(self, snapshot: Snapshot) -> bool:
        """Whether each tier of a cache holds exactly what it must hold."""
        return self._content(snapshot) == self.held

    def differences(self, snapshot: Snapshot) -> list[str]:
        """Messages that name what each tier of a cache holds and should not, and what it lacks."""
        lines: list[str] = []
        for tier, by_component in self._content(snapshot).items():
            for component, pages in by_component.items():
                expected = self.held[tier][component]
                name = component if tier is Tier.DEVICE else f"{component} on the host"
                lines += [f"{name} holds {page} and should not" for page in self._named(pages - expected)]
                lines += [f"{name} lacks {page}" for page in self._named(expected - pages)]
        return lines

    def lacking(self, snapshot: Snapshot, key: Key) -> list[str]:
        """Messages that name what the device must hold of a key's prefixes and lacks."""
        content, pages = self._content(snapshot)[Tier.DEVICE], set(self._pages(key))
        expected = self.held[Tier.DEVICE]
        return [
            f"{component} lacks {page}"
            for component in self._components
            for page in self._named(expected[component] & pages - content[component])
        ]

    def gone(self, snapshot: Snapshot) -> list[str]:
        """Messages that name what some tier held at the last `sync`, or was inserted since, and no tier holds now."""
        content = self._content(snapshot)
        return [
            f"{component} lost {page}"
            for component in self._components
            for page in self._named(
                (self.held[Tier.DEVICE][component] | self.held[Tier.HOST][component])
                - (content[Tier.DEVICE][component] | content[Tier.HOST][component])
            )
        ]

    def _nothing(self) -> Held:
        return {component: set() for component in self._components}

    def _held_on(self, component: str, tiers: Collection[Tier]) -> AbstractSet[int]:
        """The prefixes that one of these tiers holds."""
        return set().union(*(self.held[tier][component] for tier in tiers))

    def _run(self, pages: Sequence[int], tiers: Collection[Tier]) -> int:
        """The number of leading pages whose FULL data is on one of these tiers."""
        held = self._held_on(Component.FULL, tiers)
        return next((depth for depth, page in enumerate(pages) if page not in held), len(pages))

    def _deepest(self, pages: Sequence[int], tiers: Collection[Tier], components: Collection[str]) -> int:
        """The number of pages after which FULL and these components are valid."""
        known = pages[: self._run(pages, tiers)]
        # A component that the cache lacks takes no page away.
        windows, states = (
            self._held_on(name, tiers) if name in components and name in self._components else frozenset(known)
            for name in (Component.SWA, Component.MAMBA)
        )
        deepest = run = 0
        for depth, page in enumerate(known, start=1):
            run = run + 1 if page in windows else 0
            in_window = run == depth or run >= self._window_pages
            if in_window and page in states:
                deepest = depth
        return deepest

    def _creates_leaf(self, pages: Sequence[int], present: int, first_live: int, state: bool) -> bool:
        """A leaf is created only if a match can end in it: it needs a page inside the window, and a state."""
        out_of_window = Component.SWA in self._components and first_live >= len(pages)
        return present < len(pages) and not out_of_window and (state or Component.MAMBA not in self._components)

    def _adopts(self, page: int) -> bool:
        device = self.held[Tier.DEVICE]
        states = device.get(Component.MAMBA)
        higher = all(page in pages for component, pages in device.items() if component != Component.MAMBA)
        if states is None or page in states or not higher:
            return False
        states.add(page)
        return True

    def _pages(self, key: Key) -> list[int]:
        return self._walk(self._number(ROOT, key.namespace), key.identity())

    def _walk(self, origin: int, tokens: Tokens) -> list[int]:
        """The numbers of the prefixes that continue `origin`, one per whole page."""
        path = [origin]
        data, token = tokens.tobytes(), tokens.itemsize
        size, closing = self._page_size * token, self._closing * token
        for start in range(0, len(data) - closing - size + 1, size):
            path.append(self._number(path[-1], data[start : start + size + closing]))
        return path[1:]

    def _number(self, origin: int, step: Namespace | bytes) -> int:
        number = self._numbers.setdefault((origin, step), len(self._numbers))
        if number == len(self._steps):
            self._steps.append((origin, step))
        return number

    def _content(self, snapshot: Snapshot) -> dict[Tier, Held]:
        content = {tier: self._nothing() for tier in TIERS}
        for row, path in enumerate(self._paths(snapshot)):
            views: list[NodeView | HostNodeView] = [snapshot.nodes[row]]
            views += [snapshot.host.nodes[row]] if snapshot.host is not None else []
            for tier, view in zip(TIERS, views, strict=False):
                for component, pages in content[tier].items():
                    if view.slots[component] is not None:
                        pages.update(path[-1:] if component == Component.MAMBA else path)
        return content

    def _paths(self, snapshot: Snapshot) -> list[list[int]]:
        """The numbers of each node's own pages."""
        paths: list[list[int]] = []
        for node in snapshot.nodes:
            origin = paths[node.parent][-1] if node.parent >= 0 else self._number(ROOT, node.namespace)
            paths.append(self._walk(origin, self._tokens(node.segment)))
        return paths

    def _window_under_way(self, snapshot: Snapshot) -> set[int]:
        """The pages whose SWA data is being loaded, found by the host slots that the loads read."""
        host = snapshot.host
        loads = [one for one in host.transfers if one.kind is TransferKind.LOAD] if host is not None else []
        read = {slot for load in loads for slot in load.host.get(Component.SWA, NO_SLOTS).tolist()}
        if host is None or not read:
            return set()
        pages: set[int] = set()
        for path, view in zip(self._paths(snapshot), host.nodes, strict=True):
            slots = view.slots[Component.SWA]
            firsts = [] if slots is None else slots[:: self._page_size].tolist()
            pages.update(page for page, slot in zip(path, firsts, strict=False) if slot in read)
        return pages

    def _tokens(self, segment: bytes) -> Tokens:
        tokens = np.frombuffer(segment, dtype="<i4").astype(np.int32)
        return np.append(tokens[::2], tokens[-1:]) if self._closing else tokens

    def _named(self, pages: set[int]) -> list[str]:
        return [self._name(page) for page in sorted(pages)]

    def _name(self, number: int) -> str:
        """A message for one prefix: its namespace and the first token of each of its pages."""
        firsts: list[int] = []
        origin, step = self._steps[number]
        while isinstance(step, bytes):
            firsts.append(int(np.frombuffer(step, dtype=np.int32)[0]))
            origin, step = self._steps[origin]
        return f"the prefix of pages beginning {firsts[::-1]} of {step}"
