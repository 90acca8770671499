"""Model: the oracle, a dictionary of page prefixes. It says what a cache must find, and shares no code with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hicache.errors import InvariantError
from hicache.testing.snapshot import Snapshot
from hicache.types import Component, Key, Namespace, Tokens

ROOT = -1
"""What comes before a namespace."""


@dataclass(frozen=True, slots=True)
class ExpectedInsert:
    """What an insert must answer, as in InsertResult."""

    prefix_length: int
    accepted_length: int
    state_adopted: bool


class Model:
    """Which pages of which prefixes a cache holds, per component. Knows nodes, locks and eviction orders not at all.

    A prefix of whole pages has a number: found by what comes before it, the number of the shorter prefix or a
    namespace, and by the tokens of its last page (with bigram keys one token more, which closes the last pair).
    MAMBA is held at a page where it holds the state after that page.
    """

    def __init__(
        self, *, components: Sequence[str], page_size: int, sliding_window_size: int | None, bigram: bool
    ) -> None:
        self.held: dict[str, set[int]] = {component: set() for component in components}
        self._page_size = page_size
        self._window = (sliding_window_size or 0) if Component.SWA in components else 0
        self._closing = 1 if bigram else 0
        self._numbers: dict[tuple[int, Namespace | bytes], int] = {}
        self._steps: list[tuple[int, Namespace | bytes]] = []

    def expected_match(self, key: Key) -> int:
        """How many elements a match must find: the deepest page at whose end every component is valid."""
        deepest, run = 0, 0
        for depth, page in enumerate(self._pages(key), start=1):
            if page not in self.held[Component.FULL]:
                break
            run = run + 1 if self._holds(Component.SWA, page) else 0
            in_window = run == depth or run * self._page_size >= self._window
            if in_window and self._holds(Component.MAMBA, page):
                deepest = depth
        return deepest * self._page_size

    def insert(self, key: Key, *, shared: int = 0, window_start: int = 0, state: bool = False) -> ExpectedInsert:
        """Take in an insert: `shared` elements are the tree's own slots, `state` says whether one is offered."""
        pages = self._pages(key)
        full = self.held[Component.FULL]
        present = next((depth for depth, page in enumerate(pages) if page not in full), len(pages))
        first_live = -(-window_start // self._page_size)
        end = len(pages) if self._creates_leaf(pages, present, first_live, state) else present
        full.update(pages[present:end])
        if Component.SWA in self.held:
            self.held[Component.SWA].update(pages[max(first_live, shared // self._page_size) : end])
        adopted = state and bool(pages) and end == len(pages) and self._adopts(pages[-1])
        return ExpectedInsert(present * self._page_size, self.expected_match(key), adopted)

    def permit(self, key: Key) -> None:
        """A request may have cached any of its prompt; the next `sync` tells what of it."""
        for pages in self.held.values():
            pages.update(self._pages(key))

    def sync(self, snapshot: Snapshot) -> None:
        """Forget what was evicted. Raises InvariantError when a cache holds what it did not hold before."""
        content = self._content(snapshot)
        for component, pages in content.items():
            if not pages <= self.held[component]:
                raise InvariantError(f"EVICT-1: {component}: {self._named(pages - self.held[component])} appeared")
        self.held = content

    def agrees(self, snapshot: Snapshot) -> bool:
        """Whether a cache holds exactly what it must."""
        return self._content(snapshot) == self.held

    def differences(self, snapshot: Snapshot) -> list[str]:
        """In words, what a cache holds too much and what it lacks."""
        lines: list[str] = []
        for component, pages in self._content(snapshot).items():
            expected = self.held[component]
            lines += [f"{component} holds {name} and should not" for name in self._named(pages - expected)]
            lines += [f"{component} lacks {name}" for name in self._named(expected - pages)]
        return lines

    def _holds(self, component: str, page: int) -> bool:
        return component not in self.held or page in self.held[component]

    def _creates_leaf(self, pages: Sequence[int], present: int, first_live: int, state: bool) -> bool:
        """A new leaf that no match could end in is not created: it needs a page in the window, and a state."""
        out_of_window = Component.SWA in self.held and first_live >= len(pages)
        return present < len(pages) and not out_of_window and (state or Component.MAMBA not in self.held)

    def _adopts(self, page: int) -> bool:
        states = self.held.get(Component.MAMBA)
        higher = all(page in pages for component, pages in self.held.items() if component != Component.MAMBA)
        if states is None or page in states or not higher:
            return False
        states.add(page)
        return True

    def _pages(self, key: Key) -> list[int]:
        return self._walk(self._number(ROOT, key.namespace), key.tokens)

    def _walk(self, origin: int, tokens: Tokens) -> list[int]:
        """The numbers of the prefixes that go on after `origin`, one per whole page."""
        path = [origin]
        size = self._page_size
        for start in range(0, len(tokens) - self._closing - size + 1, size):
            page = tokens[start : start + size + self._closing].tobytes()
            path.append(self._number(path[-1], page))
        return path[1:]

    def _number(self, origin: int, step: Namespace | bytes) -> int:
        number = self._numbers.setdefault((origin, step), len(self._numbers))
        if number == len(self._steps):
            self._steps.append((origin, step))
        return number

    def _content(self, snapshot: Snapshot) -> dict[str, set[int]]:
        content: dict[str, set[int]] = {component: set() for component in self.held}
        ends: list[int] = []
        for node in snapshot.nodes:
            origin = ends[node.parent] if node.parent >= 0 else self._number(ROOT, node.namespace)
            path = self._walk(origin, self._tokens(node.segment))
            ends.append(path[-1])
            for component, pages in content.items():
                if node.slots[component] is not None:
                    pages.update(path[-1:] if component == Component.MAMBA else path)
        return content

    def _tokens(self, segment: bytes) -> Tokens:
        tokens = np.frombuffer(segment, dtype="<i4").astype(np.int32)
        return np.append(tokens[::2], tokens[-1:]) if self._closing else tokens

    def _named(self, pages: set[int]) -> list[str]:
        return [self._name(page) for page in sorted(pages)]

    def _name(self, number: int) -> str:
        """A prefix in words: its namespace and the first token of each of its pages."""
        firsts: list[int] = []
        origin, step = self._steps[number]
        while isinstance(step, bytes):
            firsts.append(int(np.frombuffer(step, dtype=np.int32)[0]))
            origin, step = self._steps[origin]
        return f"the prefix of pages beginning {firsts[::-1]} of {step}"
