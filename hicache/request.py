"""RequestManager: the life of a request over a cache, from admission to its end, with prefetch and load-back."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from hicache.arguments import require_count
from hicache.cache import UnifiedRadixCache
from hicache.components.component_tree import LockReceipt
from hicache.errors import ArgumentError, RequestError
from hicache.keys import RadixKey, token_ids
from hicache.tiers.load_back import LoadBackTicket
from hicache.tiers.prefetch import Prefetch
from hicache.tree.node import Node
from hicache.types import (
    ADMISSION,
    NO_SLOTS,
    Component,
    LoadBack,
    MatchResult,
    Namespace,
    Slots,
    TokenIds,
    Tokens,
    TransferPhase,
)
from hicache.verbs import Turn, verb


@dataclass(slots=True, eq=False)
class Request:
    """A running request.

    `tokens`: its prompt and what was appended, int32 [n]. `namespace`: who may share it. `receipt`: of the lock on what
    it reads of the tree. `table`: its FULL slots in order, rounded up to whole pages: first `shared_tokens` of the
    tree, then `loading_tokens` that come from the host, then its own. `cached_tokens`: how many the cache had at its
    admission, or brings with the load-back that it waits for. `computed_tokens`: how many have their KV.
    `window_start`: its own slots before this token have no SWA partners any more. `state`: its own MAMBA slot, or None
    without MAMBA. `ticket`: of the load-back that it waits for. `layers_read`: of the stack, while it waited.
    `is_ready`: it waits for no load-back, nor for slots in place of what a failed one did not bring. `keep_at`: with
    MAMBA, the lengths at which later prompts need a state, in order: compute up to each, and checkpoint. `extend` adds
    those of `mamba_checkpoint_interval`.
    """

    tokens: Tokens
    namespace: Namespace | None
    table: Slots
    shared_tokens: int
    cached_tokens: int
    computed_tokens: int
    window_start: int
    state: int | None
    receipt: LockReceipt
    ticket: LoadBackTicket | None
    loading_tokens: int
    layers_read: int
    is_ready: bool
    keep_at: tuple[int, ...]


class RequestManager:
    """Admits, extends, checkpoints and ends requests. What does not fit changes nothing."""

    def __init__(self, cache: UnifiedRadixCache) -> None:
        if cache.turn.is_closed:
            raise cache.turn.refusal(type(self).__name__)
        self._cache = cache
        self._page = cache.config.page_size
        self._window = cache.config.sliding_window_size if Component.SWA in cache.config.components else None
        self._has_states = Component.MAMBA in cache.config.components
        # Of a pair of tokens, with bigram keys: the one after the state.
        self._partner = 1 if cache.config.bigram else 0
        self._running: set[Request] = set()
        self._epoch = cache.epoch

    @property
    def turn(self) -> Turn:
        """The cache's: an interruption between two of its verbs is one in the middle of a verb of requests."""
        return self._cache.turn

    @verb
    def prefetch(self, tokens: TokenIds, namespace: Namespace | None = None) -> Prefetch | None:
        """Begin to read the stored prefix of a prompt before its admission; None when there is nothing to wait for."""
        key = self._all_but_last(token_ids(tokens), namespace)
        return None if self._cache.storage is None else self._cache.prefetch(key)

    @verb
    def has_prefetched(self, prefetch: Prefetch) -> bool:
        """Whether to admit the request now. Ask after each step of the cache, until it is True; then no more."""
        return self._cache.check_prefetch(prefetch) is not None

    @verb
    def admit(self, tokens: TokenIds, namespace: Namespace | None = None) -> Request | None:
        """Match, lock, take an own state and slots for the rest; None when they are not available.

        `tokens`: [n], as `UnifiedRadixCache.key` takes them; the request keeps a copy. The last token is never taken
        from the cache: the request needs what is computed for it. Raises KeyFormError for an invalid token id.
        """
        self._end_epoch()
        # A copy: the caller may write its next prompt to the same memory.
        ids = token_ids(tokens).copy()
        key = self._all_but_last(ids, namespace)
        # A hit is counted once it is served: a request that does not fit asks again.
        found = self._cache.match(key, chunked=True)
        request = self._start(ids, namespace, found)
        if request is None and not self._running:
            # No other request will free the slot that a copy of the hit's state needs: do without the hit.
            found = self._up_to(found, self._cache.tree.radix.root)
            request = self._start(ids, namespace, found)
        if request is not None:
            self._cache.count_hit(key, found if request.ticket is not None else self._up_to(found, found.device_anchor))
        return request

    @verb
    def resume(self, request: Request) -> bool:
        """Whether a request can be computed. Once its load-back has ended it takes what came, or does without.

        False also after a load-back that failed, while there are no slots for what did not come: other requests have to
        end first. If no other request runs, the prompt fits the cache only with its hit, and it can only be aborted.
        """
        self._require_running(request)
        if request.ticket is not None and self._cache.load_phase(request.ticket).has_ended:
            self._take_over(request, request.ticket)
        if not request.is_ready and request.ticket is None:
            self._replace_lost(request)
        return request.is_ready

    @verb
    def wait_layer(self, request: Request, layer: int) -> bool:
        """Return when one layer of the stack has arrived of what a request waits for. Whether it may be read.

        So a request is computed while its load-back runs, layer by layer: each layer may be read in its table, and is
        in its own state. On a GPU the current stream waits instead of the caller. False where all of the load-back must
        be waited for with `resume`, as in `UnifiedRadixCache.wait_layer`. Only a request that was resumed can go on.
        Then what was computed counts if `computed_tokens` is still as large as `cached_tokens`; after a load-back that
        failed it is smaller, and the tokens after it are computed again.
        """
        self._require_running(request)
        require_count("layer", layer)
        if request.ticket is None:
            return request.is_ready
        if not self._cache.wait_layer(request.ticket, layer):
            return False
        while request.layers_read <= layer:
            if request.state is not None:
                self._cache.copy_loaded_state(request.ticket, request.layers_read, request.state)
            request.layers_read += 1
        return True

    @verb
    def extend(self, request: Request, tokens: TokenIds) -> bool:
        """Append tokens to a request of which all were computed; False, with nothing changed, when they don't fit.

        `tokens`: [n], as `UnifiedRadixCache.key` takes them. Raises KeyFormError for an invalid token id.
        """
        self._require_ready(request)
        ids = token_ids(tokens)
        rest = self._cache.allocate(self._missing(len(request.tokens) + len(ids), len(request.table)))
        if rest is None:
            return False
        request.computed_tokens = len(request.tokens)
        request.keep_at = self._checkpoints(len(request.tokens), len(request.tokens) + len(ids))
        request.tokens = np.concatenate((request.tokens, ids))
        request.table = np.concatenate((request.table, rest))
        self._release_window(request)
        return True

    @verb
    def checkpoint(self, request: Request, computed_tokens: int) -> None:
        """A chunk was computed: insert it into the tree and go on reading from there.

        Skipped, so that the request keeps its slots, where the tree would refuse it: between two states, or without
        a free slot for the state in the tree.
        """
        self._require_ready(request)
        computed_tokens = require_count("computed_tokens", computed_tokens)
        if not request.computed_tokens <= computed_tokens <= len(request.tokens):
            raise ArgumentError(
                f"{computed_tokens} tokens computed: not in {request.computed_tokens}..{len(request.tokens)}"
            )
        request.computed_tokens = computed_tokens
        request.keep_at = tuple(tokens for tokens in request.keep_at if tokens > computed_tokens)
        key = self._cache.key(request.tokens[:computed_tokens], request.namespace)
        length = self._cache.length(key)
        state = self._state_copy(request, length)
        if length <= request.shared_tokens or (self._has_states and state is None):
            self._free_state(state)
            self._release_window(request)
            return
        result = self._cache.insert(key, request.table[:length], state, priority=0)
        if not result.state_adopted:
            self._free_state(state)
        self._move_lock(request, result.node)
        request.table = np.concatenate((self._cache.slots_to(result.node), request.table[length:]))
        request.shared_tokens = length

    @verb
    def finish(self, request: Request) -> None:
        """Every token was computed: insert them into the tree, and free the rest."""
        self._require_ready(request)
        key = self._cache.key(request.tokens, request.namespace)
        length = self._cache.length(key)
        request.computed_tokens = len(request.tokens)
        exact = self._ends_page(len(request.tokens), length)
        result = self._cache.insert(key, request.table[:length], request.state if exact else None, priority=0)
        if not result.state_adopted:
            self._free_state(request.state)
        request.shared_tokens = length
        self._end(request)

    @verb
    def abort(self, request: Request) -> None:
        """Release the request's own slots and state. What it has inserted stays cached."""
        self._require_running(request)
        self._free_state(request.state)
        self._end(request)

    def _start(self, tokens: Tokens, namespace: Namespace | None, found: MatchResult) -> Request | None:
        with ExitStack() as taken:
            receipt = self._cache.lock(found.device_anchor)
            taken.callback(self._cache.unlock, receipt)
            load = self._load(found)
            came, ticket = (NO_SLOTS, None) if load is None else (load.indices, load.ticket)
            taken.callback(self._cancel_load, ticket)
            cached = len(found.device_indices) + len(came)
            state = self._own_state(receipt, cached, is_loading=load is not None)
            taken.callback(self._free_state, state)
            lacks_state = self._has_states and state is None
            rest = None if lacks_state else self._cache.allocate(self._missing(len(tokens), cached))
            if rest is None:
                return None
            taken.pop_all()
        request = Request(
            tokens=tokens,
            namespace=namespace,
            table=np.concatenate((found.device_indices, came, rest)),
            shared_tokens=len(found.device_indices),
            cached_tokens=cached,
            computed_tokens=cached,
            window_start=cached,
            state=state,
            receipt=receipt,
            ticket=ticket,
            loading_tokens=len(came),
            layers_read=0,
            is_ready=ticket is None,
            keep_at=self._keep_at(tokens, namespace, cached, found.branching_seqlen),
        )
        self._running.add(request)
        return request

    def _keep_at(
        self, tokens: Tokens, namespace: Namespace | None, cached: int, branching: int | None
    ) -> tuple[int, ...]:
        """Where the next prompts of this kind need a state: one that repeats it, and one that parts from it."""
        if not self._has_states:
            return ()
        # The last token is never taken from the cache.
        whole = self._cache.length(self._all_but_last(tokens, namespace))
        unit = self._cache.config.mamba_state_unit
        ends = {end // unit * unit + self._partner for end in (whole, branching or 0) if end // unit * unit > cached}
        return tuple(sorted(ends.union(self._checkpoints(cached + self._partner, len(tokens)))))

    def _checkpoints(self, start: int, end: int) -> tuple[int, ...]:
        """The lengths past `start`, up to `end`, at which the configuration keeps a state."""
        interval = self._cache.config.mamba_checkpoint_interval
        if interval is None:
            return ()
        first = (start - self._partner) // interval * interval + interval + self._partner
        return tuple(range(first, end + 1, interval))

    def _load(self, found: MatchResult) -> LoadBack | None:
        if found.best_match is found.device_anchor:
            return None
        return self._cache.load_back(found.best_match)

    def _take_over(self, request: Request, ticket: LoadBackTicket) -> None:
        """The load-back has ended: share what it brought, or share less."""
        came = slice(request.shared_tokens, request.shared_tokens + request.loading_tokens)
        if self._cache.load_phase(ticket) is TransferPhase.DONE:
            self._move_lock(request, ticket.node)
            if request.state is not None and not self._has_read_all(request):
                self._cache.copy_state(self._cache.state_of(ticket.node), request.state)
            request.shared_tokens = came.stop
            request.is_ready = True
        pages = self._cache.claim(ticket)
        if pages is None:
            request.table = np.concatenate((request.table[: came.start], request.table[came.stop :]))
        else:
            request.table[came] = pages
        request.ticket, request.loading_tokens = None, 0

    def _has_read_all(self, request: Request) -> bool:
        """Whether a request has its state from each layer, and may have gone on from it."""
        return self._cache.host is not None and request.layers_read == self._cache.host.layers

    def _replace_lost(self, request: Request) -> None:
        """Take own slots for what did not come, if there are any."""
        fresh = self._cache.allocate(self._missing(len(request.tokens), len(request.table)))
        if fresh is None:
            return
        cached = request.shared_tokens
        request.table = np.concatenate((request.table[:cached], fresh, request.table[cached:]))
        request.computed_tokens = request.window_start = cached
        if request.state is not None and cached:
            self._cache.copy_state(self._cache.state_of(request.receipt.node), request.state)
        request.is_ready = True

    def _move_lock(self, request: Request, node: Node) -> None:
        """Lock up to another node. The new lock is taken before the old one goes: the prefix is never without one."""
        receipt, old = self._cache.lock(node), request.receipt
        request.receipt = receipt
        self._cache.unlock(old)

    def _end(self, request: Request) -> None:
        self._cache.free(request.table[request.shared_tokens + request.loading_tokens :])
        self._cancel_load(request.ticket)
        self._cache.unlock(request.receipt)
        request.table, request.state, request.shared_tokens = NO_SLOTS, None, 0
        request.ticket, request.loading_tokens = None, 0
        self._running.remove(request)

    def _cancel_load(self, ticket: LoadBackTicket | None) -> None:
        if ticket is not None:
            self._cache.abandon(ticket)

    def _up_to(self, found: MatchResult, node: Node) -> MatchResult:
        """The part of a hit that a request uses, up to a node on the device: the admission refuses the rest."""
        if found.best_match is node:
            return found
        end = node.end * self._page
        refused = found.best_match.end * self._page - end
        return MatchResult(
            device_indices=found.device_indices[:end],
            device_anchor=node,
            best_match=node,
            host_hit_length=0,
            component_host_hit_lengths={},
            branching_seqlen=None,
            tokens_refused={**found.tokens_refused, ADMISSION: refused},
            full_kv_hit_length=found.full_kv_hit_length,
        )

    def _missing(self, tokens: int, held: int) -> int:
        return max(0, -(-tokens // self._page) * self._page - held)

    def _own_state(self, receipt: LockReceipt, cached: int, *, is_loading: bool) -> int | None:
        """An own slot, with the state after what is cached. That of a load-back is copied when it has come."""
        if not self._has_states:
            return None
        return self._cache.fork_state(receipt.node) if cached and not is_loading else self._cache.allocate_state()

    def _all_but_last(self, tokens: Tokens, namespace: Namespace | None) -> RadixKey:
        """The key of a prompt without its last token, which a request needs computed."""
        return self._cache.key(tokens[:-1], namespace)

    def _require_running(self, request: Request) -> None:
        if not isinstance(request, Request):
            raise RequestError(f"{request!r} is not a request")
        self._end_epoch()
        if request not in self._running:
            raise RequestError(f"a request of {len(request.tokens)} tokens has ended, or was not admitted here")

    def _end_epoch(self) -> None:
        """Forget the requests from before an interruption: what they had is free."""
        if self._epoch != self._cache.epoch:
            self._running.clear()
            self._epoch = self._cache.epoch

    def _require_ready(self, request: Request) -> None:
        self._require_running(request)
        if not request.is_ready:
            raise RequestError(f"a request of {len(request.tokens)} tokens waits for a load-back: resume it first")

    def _state_copy(self, request: Request, length: int) -> int | None:
        """A slot for the tree with the request's state, if that is the state after `length` tokens."""
        if request.state is None or not self._ends_page(request.computed_tokens, length):
            return None
        copy = self._cache.allocate_state()
        if copy is not None:
            self._cache.copy_state(request.state, copy)
        return copy

    def _ends_page(self, tokens: int, length: int) -> bool:
        return length > 0 and tokens - length == self._partner

    def _free_state(self, state: int | None) -> None:
        if state is not None:
            self._cache.free_state(state)

    def _release_window(self, request: Request) -> None:
        """Free the SWA partners of own slots that the window has passed, and unlock those of the tree before them."""
        if self._window is None:
            return
        length = self._cache.length(self._cache.key(request.tokens[: request.computed_tokens], request.namespace))
        # A page more than the window stays: the next prompt may end inside the last page, or differ there.
        passed = (length - self._window) // self._page * self._page - self._page
        start = max(request.window_start, request.shared_tokens)
        if passed > start:
            self._cache.release_window(request.table[start:passed])
            request.window_start = passed
            request.receipt = self._cache.unlock_window(request.receipt)
