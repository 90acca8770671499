"""The reference as SGLang's radix cache: `--radix-cache-backend hicache`, registered by `register`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from hicache.cache import UnifiedRadixCache
from hicache.config import CacheConfig, EvictionPolicy, ExecutorKind, HostConfig, WritePolicy
from hicache.errors import ConfigurationError, ReceiptError, SlotError
from hicache.integrations.sglang_slots import UNBOUND, SlotCopier, SlotMap, slot_tensors
from hicache.optional_torch import torch
from hicache.runtime import Runtime
from hicache.transfer.executors import StepExecutor
from hicache.types import NO_SLOTS, SHARED, Component, Namespace, Slots, TransferPhase

if TYPE_CHECKING:
    from hicache.components.component_tree import LockReceipt
    from hicache.tree.node import Node

NAME = "hicache"
"""What `--radix-cache-backend` takes."""

FULL, SWA, MAMBA = (component.value for component in Component)

BASE = "sglang.srt.mem_cache.base_prefix_cache"
UNIFIED = "sglang.srt.mem_cache.unified_radix_cache"
REGISTRY = "sglang.srt.mem_cache.registry"


def register() -> None:
    """Register the backend with SGLang, in this process. SGLang calls this as its plugin `hicache`; again is harmless.

    Raises ImportError when SGLang is not installed.
    """
    registry = import_module(REGISTRY)
    if NAME not in registry.registered_radix_cache_backends():
        registry.register_radix_cache_backend(NAME, open_backend)


def open_backend(context: Any) -> Any:
    """SGLang's factory: the cache for its build context. Without prefix caching it is SGLang's own.

    Raises ConfigurationError for what the backend does not support.
    """
    if context.disable_radix_cache:
        return import_module(REGISTRY).default_radix_cache_factory(context)
    params, kinds = context.params, import_module(UNIFIED).ComponentType
    wanted = ((True, kinds.FULL), (context.is_hybrid_swa, kinds.SWA), (context.is_hybrid_ssm, kinds.MAMBA))
    params.tree_components = tuple(kind for is_there, kind in wanted if is_there)
    opened = drop_in_class()(params)
    if context.enable_hierarchical_cache:
        opened.init_hicache(context.server_args, params)
    return opened


@cache
def drop_in_class() -> Any:
    """SGLang's UnifiedRadixCache with the tree of the reference. Raises ImportError when SGLang is not installed."""
    return type("HiCacheRadixCache", (ReferenceTree, import_module(UNIFIED).UnifiedRadixCache), {})


@dataclass(slots=True)
class HeldLock:
    """A lock of SGLang: the node, and the reference's receipt."""

    node: Node
    receipt: LockReceipt


class ReferenceTree:
    """What SGLang's UnifiedRadixCache does with its tree, done by the reference. What a request needs stays SGLang's.

    SGLang's allocators own the memory. A page of the reference stands for slots of SGLang, so that any allocator will
    do; what becomes free in the tree is given back to SGLang's allocators at the end of each verb. Handles are the
    reference's nodes. Copies between the tiers are made by the verb that asks for them, before it returns.
    """

    disable: bool
    components: Mapping[Any, Any]
    tree_components: Sequence[Any]
    req_to_token_pool: Any
    token_to_kv_pool_allocator: Any
    session: Any
    reference: UnifiedRadixCache | None = None

    def __init__(self, params: Any) -> None:
        super().__init__(params)  # type: ignore[call-arg]  # SGLang's class follows in the order of resolution
        if params.tp_cache_group is not None and torch.distributed.get_world_size(params.tp_cache_group) > 1:
            raise ConfigurationError("hicache as SGLang's backend supports one rank, got a tensor-parallel group")
        self._names = tuple(str(kind.name).lower() for kind in self.tree_components)
        if unknown := set(self._names) - {FULL, SWA, MAMBA}:
            raise ConfigurationError(f"components {sorted(unknown)} are not supported")
        self._params = params
        self._serials = count(1)
        self._open(None)

    # Opening.

    def _open(self, host: HostConfig | None) -> None:
        """An empty reference. It has twice as many pages as SGLang: those of the tree, and those of one insert."""
        page, sizes = self._params.page_size, self._device_slots()
        config = CacheConfig(
            capacity_tokens={
                name: 2 * (-(-size // self._unit(name)) * self._unit(name)) for name, size in sizes.items()
            },
            page_size=page,
            components=self._names,
            sliding_window_size=self._params.sliding_window_size,
            mamba_chunk_size=self._chunk_size() if MAMBA in self._names else None,
            policy=EvictionPolicy(self._params.eviction_policy),
            bigram=bool(getattr(self._params, "is_eagle", False)),
            host=host,
        )
        self._maps = {
            name: SlotMap(capacity // self._unit(name), self._unit(name), sizes[name] + page + 1)
            for name, capacity in config.capacity_tokens.items()
        }
        self._owner = np.zeros(config.capacity_tokens.get(SWA, 0) // page + 1, dtype=np.int64)
        self._held: dict[int, HeldLock] = {}
        runtime = Runtime.of(config)
        if host is not None:
            pages = {name: tokens // self._unit(name) for name, tokens in host.capacity_tokens.items()}
            states = getattr(self.req_to_token_pool, "mamba_pool", None)
            tensors = slot_tensors(self.token_to_kv_pool_allocator.get_kvcache(), states, self._names)
            worker = SlotCopier(self._maps, tensors, pages, self._take)
            runtime = replace(runtime, open_copies=lambda _kind, _copier: StepExecutor(worker))
        if self.reference is not None:
            self.reference.close()
        self.reference = UnifiedRadixCache.open(config, runtime)
        self.reference.take_freed()
        self._set_thresholds()

    def _device_slots(self) -> dict[str, int]:
        allocator = self.token_to_kv_pool_allocator
        sizes = {FULL: allocator.size_full, SWA: allocator.size_swa} if SWA in self._names else {FULL: allocator.size}
        if MAMBA in self._names:
            sizes[MAMBA] = self.req_to_token_pool.mamba_pool.size
        return sizes

    def _chunk_size(self) -> int:
        name = "sglang.srt.runtime_context"
        context: Any = import_module(name) if find_spec(name) is not None else None
        if hasattr(context, "mamba_cache_chunk_size"):
            return int(context.mamba_cache_chunk_size())
        options = import_module("sglang.srt.server_args").get_global_server_args()
        return int(options.mamba_cache_chunk_size)

    def init_hicache(self, server_args: Any, params: Any) -> None:
        """Open the host tier that SGLang's options ask for. The tree must be empty; it is made anew."""
        if getattr(server_args, "hicache_storage_backend", None):
            raise ConfigurationError("hicache as SGLang's backend has no storage tier: leave out the storage backend")
        policy = WritePolicy(server_args.hicache_write_policy)
        ratio = server_args.hicache_ratio
        if server_args.hicache_size:
            ratio = server_args.hicache_size * 1e9 / self._device_bytes()
        capacity = {
            name: max(1, int(size * ratio) // self._unit(name)) * self._unit(name)
            for name, size in self._device_slots().items()
        }
        self._open(HostConfig(capacity, write_policy=policy, executor=ExecutorKind.STEPPED))

    def _device_bytes(self) -> int:
        states = getattr(self.req_to_token_pool, "mamba_pool", None)
        tensors = slot_tensors(self.token_to_kv_pool_allocator.get_kvcache(), states, self._names)
        return sum(own.nbytes for part in tensors.values() for own in part)

    # The verbs of SGLang.

    def reset(self) -> None:
        """Empty the tree. SGLang clears its allocators after this, so nothing is given back to them."""
        opened, self.reference = self.reference, None
        super().reset()  # type: ignore[misc]
        self.reference = opened
        if opened is not None:
            opened.reset()
            for name, slots in opened.take_freed().items():
                self._maps[name].unbind(self._pages(name, slots))
            self._held.clear()

    def match_prefix(self, params: Any) -> Any:
        """The longest prefix that can be used, on the device and on the host."""
        of_session = self.session.try_match_prefix(params)
        if of_session is not None:
            return of_session
        found = self._tree.match(self._key(params.key))
        if params.cow_mamba and MAMBA in self._names:
            self._share_state(found.best_match, params.req)
        indices = self._tensor(FULL, found.device_indices)
        hits = found.component_host_hit_lengths
        fields = {
            "device_indices": indices,
            "device_prefix_len": len(indices),
            "last_device_node": found.device_anchor,
            "last_host_node": found.best_match,
            "best_match_node": found.best_match,
            "host_hit_length": found.host_hit_length,
            "swa_host_hit_length": hits.get(SWA, 0),
            "mamba_host_hit_length": hits.get(MAMBA, 0),
            "mamba_branching_seqlen": found.branching_seqlen,
            "full_kv_hit_length": found.full_kv_hit_length,
        }
        result = import_module(BASE).MatchResult
        return result(**{name: value for name, value in fields.items() if name in result._fields})

    def touch_prefix(self, key: Any) -> None:
        """A use of a cached prefix."""
        self._tree.match(self._key(key), chunked=True)

    def insert(self, params: Any) -> Any:
        """Give the slots of a key to the tree. What it has already is freed, from `prev_prefix_len` on.

        What it refuses stays the request's: the end of a key whose window is gone.
        """
        key = self._key(params.key)
        length = self._tree.length(key)
        result_type = import_module(BASE).InsertResult
        if not length:
            return result_type(prefix_len=0)
        full = params.value[:length].cpu().numpy().astype(np.int64)
        pages = self._adopt(full, self._window_of(full, params))
        state = self._adopt_state(params.mamba_value)
        slots = self._tree.pools.slots_of(pages)
        result = self._tree.insert(key, slots, state, priority=params.priority)
        if state is not None and not result.state_adopted:
            self._maps[MAMBA].unbind(np.array([state]))
            self._tree.free_state(state)
        self._map_windows(result.node)
        # What the tree refuses, because no match could use it, a running request goes on using.
        end = len(self._tree.slots_to(result.node))
        self._give_back(kept=np.concatenate((full[: params.prev_prefix_len], full[end:])))
        self._copy()
        fields = {
            "prefix_len": result.prefix_length,
            "total_len": length,
            "last_device_node": result.node,
            "mamba_exist": params.mamba_value is not None and not result.state_adopted,
        }
        known = result_type.__dataclass_fields__
        return result_type(**{name: value for name, value in fields.items() if name in known})

    def evict(self, params: Any) -> Any:
        """Free so many slots of each component, or all that is not locked."""
        freed: Counter[str] = Counter()
        wanted = {FULL: params.num_tokens, SWA: params.swa_num_tokens, MAMBA: params.mamba_num}
        for name, tokens in wanted.items():
            if name in self._names and tokens > freed[name]:
                freed.update(self._tree.evict(name, tokens - freed[name]).freed)
        self._give_back()
        return import_module(BASE).EvictResult(
            num_tokens_evicted=freed[FULL], swa_num_tokens_evicted=freed[SWA], mamba_num_evicted=freed[MAMBA]
        )

    def evict_for_alloc(self, params: Any, *, allocation_reclaim_satisfied: Callable[[], bool] | None = None) -> Any:
        """As `evict`, unless what is free is enough already."""
        if allocation_reclaim_satisfied is not None and allocation_reclaim_satisfied():
            return import_module(BASE).EvictResult()
        return self.evict(params)

    def inc_lock_ref(self, node: Node, skip_lock_components: Sequence[Any] = ()) -> Any:
        """Lock up to a node. The result has the number of the receipt where SGLang has that of a window's boundary."""
        skips_state = any(str(kind.name).lower() == MAMBA for kind in skip_lock_components)
        number = next(self._serials)
        self._held[number] = HeldLock(node, self._tree.lock(node, with_state=not skips_state))
        result = import_module(BASE).IncLockRefResult()
        if hasattr(result, "component_lock_uuids"):
            result.node_id = number
            result.component_lock_uuids = dict.fromkeys(self.tree_components, number)
        else:
            result.swa_uuid_for_lock = number
        return result

    def dec_lock_ref(self, node: Node, params: Any = None, skip_swa: bool = False) -> Any:
        """Undo a lock: that of the receipt, or without one the last on the node."""
        number = self._number(node, params)
        if number is not None:
            self._tree.unlock(self._held.pop(number).receipt)
            # A node whose window was evicted under the lock goes with it.
            self._give_back()
        return import_module(BASE).DecLockRefResult()

    def dec_swa_lock_only(self, node: Node, swa_uuid_for_lock: int | None = None, *_: object) -> None:
        """Unlock the window of a lock early (until 0.5.18)."""
        self._unlock_window(node, swa_uuid_for_lock)

    def release_swa(self, lock: Any) -> None:
        """Unlock the window of a lock early (from 0.5.23 on)."""
        if lock is not None and not lock.swa_released:
            self._unlock_window(lock.node, lock.receipt)
            lock.swa_released = True

    def init_load_back(self, params: Any) -> Any:
        """Copy what a request lacks from the host, before this returns: the tokens that came, and the node they end at.

        Until 0.5.18 SGLang expects their slots in the place of their number.
        """
        node, anchor = params.best_match_node, params.req.last_node
        before = len(self._tree.slots_to(anchor)) if anchor.alive else 0
        loaded = self.load_back(node, params.mem_quota, params.req)
        slots = self._tree.slots_to(node)[before:] if loaded else self._tree.slots_to(node)[:0]
        indices = self._tensor(FULL, slots)
        reached = node if len(slots) else anchor
        takes_number = "device_prefix_len" in import_module(BASE).MatchResult._fields
        return (len(indices) if takes_number else indices), reached

    def load_back(self, node: Node, mem_quota: int | None = None, req: Any = None) -> bool:
        """Copy to the device what a reader up to the node lacks. Whether it came."""
        # SGLang's quota is what it has left for a request, which may be less than nothing.
        quota = None if mem_quota is None else max(0, mem_quota)
        started = self._tree.load_back(node, quota) if self._tree.config.host is not None else None
        if started is None:
            return False
        self._make_room(started.indices)
        self._copy()
        has_come = self._tree.load_phase(started.ticket) is TransferPhase.DONE
        self._tree.claim(started.ticket)
        if has_come:
            self._map_windows(node)
        self._give_back()
        if has_come and MAMBA in self._names and req is not None:
            self._share_state(node, req)
        return has_come

    def check_hicache_events(self) -> None:
        """Copies have ended when the verb that asked for them returned: there is nothing to take over."""
        self._copy()

    def flush_pending_backups(self) -> None:
        """As `check_hicache_events`."""
        self._copy()

    def ready_to_load_host_cache(self) -> int:
        """Nothing is under way that a batch would have to wait for: SGLang's number for that is -1."""
        return -1

    # Thresholds, which SGLang's code sets as attributes.

    @property
    def write_through_threshold(self) -> int:
        """How many requests for a node there must have been before it is backed up; the first counts."""
        return int(self.__dict__.get("_backup_requests", 1))

    @write_through_threshold.setter
    def write_through_threshold(self, requests: int) -> None:
        self.__dict__["_backup_requests"] = requests
        self._set_thresholds()

    @property
    def load_back_threshold(self) -> int:
        """FULL tokens below which nothing is loaded back."""
        return int(self.__dict__.get("_load_back_tokens", 10))

    @load_back_threshold.setter
    def load_back_threshold(self, tokens: int) -> None:
        self.__dict__["_load_back_tokens"] = tokens
        self._set_thresholds()

    def _set_thresholds(self) -> None:
        if self.reference is not None and self.reference.config.host is not None:
            self.reference.set_thresholds(self.write_through_threshold - 1, self.load_back_threshold)

    # What SGLang asks of the tree.

    @property
    def root_node(self) -> Any:
        """The reference's root. Without a reference yet, that of SGLang's own tree."""
        return self.__dict__.get("_own_root") if self.reference is None else self._root()

    @root_node.setter
    def root_node(self, node: Any) -> None:
        self.__dict__["_own_root"] = node

    def root_node_handle(self, extra_key: str | None = None) -> Any:
        """The root."""
        return self.root_node

    def resolve_node_handle(self, node_handle: Any) -> Any:
        """Handles are nodes."""
        return node_handle

    def is_root(self, node: Node) -> bool:
        """Whether a node is the root."""
        return node.is_root

    def path_device_indices(self, node: Node) -> torch.Tensor:
        """The slots from the root to a node."""
        return self._tensor(FULL, self._tree.slots_to(node))

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        """The slots of a request's matched prefix."""
        return self.path_device_indices(req.last_node)[: req.prefix_len]

    def evictable_size(self) -> int:
        """FULL slots in the tree that are not locked."""
        return self._tree.sizes()[FULL].evictable

    full_evictable_size = evictable_size

    def protected_size(self) -> int:
        """FULL slots in the tree that are locked."""
        return self._tree.sizes()[FULL].protected

    full_protected_size = protected_size

    def swa_evictable_size(self) -> int:
        """SWA slots in the tree that are not locked."""
        return self._tree.sizes()[SWA].evictable if SWA in self._names else 0

    def swa_protected_size(self) -> int:
        """SWA slots in the tree that are locked."""
        return self._tree.sizes()[SWA].protected if SWA in self._names else 0

    def mamba_evictable_size(self) -> int:
        """States in the tree that are not locked."""
        return self._tree.sizes()[MAMBA].evictable if MAMBA in self._names else 0

    def mamba_protected_size(self) -> int:
        """States in the tree that are locked."""
        return self._tree.sizes()[MAMBA].protected if MAMBA in self._names else 0

    def total_size(self) -> tuple[int, int]:
        """FULL slots in the tree, and slots of the other components."""
        full, *others = (one.evictable + one.protected for one in self._tree.sizes().values())
        return full, sum(others)

    def all_values_flatten(self) -> torch.Tensor:
        """All FULL slots of the tree, in any order."""
        return self._bound(FULL)

    def all_mamba_values_flatten(self) -> torch.Tensor:
        """All states of the tree, in any order."""
        return self._bound(MAMBA)

    def available_and_evictable_str(self) -> str:
        """For SGLang's log: what of each component is free or can be evicted."""
        lines = []
        for name, sizes in self._tree.sizes().items():
            free, evictable = self._allocator(name).available_size(), sizes.evictable
            unit = "full tokens" if name == FULL else name
            lines.append(f"Available {unit}: {free + evictable} ({free} free + {evictable} evictable)\n")
        return "".join(lines)

    def sanity_check(self) -> None:
        """Raise AssertionError unless the pages of the tree, and no others, stand for slots."""
        for name, sizes in self._tree.sizes().items():
            bound, held = len(self._maps[name].all_slots()), sizes.evictable + sizes.protected
            assert bound == held, f"{name}: {bound} slots are bound, the tree has {held}"

    def pretty_print(self) -> None:
        """Print the tree."""
        print(self._tree.draw())  # noqa: T201 - SGLang's method prints

    # Slots.

    @property
    def _tree(self) -> UnifiedRadixCache:
        assert self.reference is not None, "the tree is opened by the constructor"
        return self.reference

    def _root(self) -> Node:
        root: Node = self._tree.tree.radix.root
        return root

    def _key(self, key: Any) -> Any:
        tokens = key.raw_token_ids() if hasattr(key, "raw_token_ids") else key.token_ids
        salt = getattr(key, "cache_salt", None)
        is_shared = key.extra_key is None and salt is None
        return self._tree.key(np.asarray(tokens), SHARED if is_shared else Namespace(lora=key.extra_key, salt=salt))

    def _unit(self, name: str) -> int:
        return 1 if name == MAMBA else int(self._params.page_size)

    def _pages(self, name: str, slots: Slots) -> Slots:
        return slots[:: self._unit(name)] // self._unit(name)

    def _tensor(self, name: str, slots: Slots) -> torch.Tensor:
        """SGLang's slots for those of the reference."""
        own = self._maps[name].slots(self._pages(name, slots))
        return torch.from_numpy(own).to(self.token_to_kv_pool_allocator.device)

    def _bound(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._maps[name].all_slots()).to(self.token_to_kv_pool_allocator.device)

    def _allocator(self, name: str) -> Any:
        allocator = self.token_to_kv_pool_allocator
        if name == MAMBA:
            return self.req_to_token_pool.mamba_allocator
        if SWA not in self._names:
            return allocator
        return allocator.full_attn_allocator if name == FULL else allocator.swa_attn_allocator

    def _take(self, name: str, pages: int) -> Slots | None:
        """SGLang's slots for so many pages, or None when there are not enough."""
        taken = self._allocator(name).alloc(pages * self._unit(name))
        return None if taken is None else taken.cpu().numpy().astype(np.int64)

    def _window_of(self, full: Slots, params: Any) -> Slots:
        """The SWA slot of each FULL slot of a request, 0 where it has none."""
        if SWA not in self._names:
            return full
        window = self.token_to_kv_pool_allocator.full_to_swa_index_mapping[torch.from_numpy(full)]
        slots: Slots = window.cpu().numpy().astype(np.int64)
        if hasattr(params, "get_evicted_seqlen"):
            kind = next(one for one in self.tree_components if str(one.name).lower() == SWA)
            slots[: params.get_evicted_seqlen(kind)] = 0
        else:
            slots[: params.swa_evicted_seqlen] = 0
        return slots

    def _adopt(self, full: Slots, window: Slots) -> Slots:
        """The reference's pages for slots of a request: those of the tree, and fresh ones for the request's own."""
        pages = self._maps[FULL].pages(full)
        is_own = pages == 0
        taken = self._tree.allocate(int(is_own.sum()) * self._unit(FULL))
        assert taken is not None, "the reference has pages for all slots of SGLang, and for one insert"
        pages[is_own] = self._pages(FULL, taken)
        runs = full.reshape(-1, self._unit(FULL))
        self._maps[FULL].bind(pages[is_own], runs[is_own].reshape(-1))
        if SWA in self._names:
            self._adopt_window(pages[is_own], window.reshape(runs.shape)[is_own])
        return pages

    def _adopt_window(self, pages: Slots, runs: Slots) -> None:
        """Let the partners of fresh pages stand for SWA slots; those of pages without such slots are freed."""
        has_window = (runs > 0).all(axis=1)
        partners = self._tree.pools.partners(pages)
        self._maps[SWA].bind(partners[has_window], runs[has_window].reshape(-1))
        self._owner[partners[has_window]] = pages[has_window]
        self._tree.release_window(self._tree.pools.slots_of(pages[~has_window]))

    def _adopt_state(self, value: Any) -> int | None:
        if value is None or MAMBA not in self._names:
            return None
        state = self._tree.allocate_state()
        assert state is not None, "the reference has states for all slots of SGLang, and for one insert"
        self._maps[MAMBA].bind(np.array([state]), value.cpu().numpy().astype(np.int64).reshape(1))
        return state

    def _map_windows(self, node: Node) -> None:
        """Tell SGLang's allocator which SWA slots the FULL slots up to a node have, where that is new."""
        if SWA not in self._names:
            return
        pages = self._pages(FULL, self._tree.slots_to(node))
        partners = self._pages(SWA, self._tree.slots_to(node, SWA))
        is_new = (partners > 0) & (self._owner[partners] != pages)
        self._owner[partners[is_new]] = pages[is_new]
        self._set_mapping(self._maps[FULL].slots(pages[is_new]), self._maps[SWA].slots(partners[is_new]))

    def _set_mapping(self, full: Slots, window: Slots) -> None:
        mapping = self.token_to_kv_pool_allocator.full_to_swa_index_mapping
        mapping[torch.from_numpy(full).to(mapping.device)] = torch.from_numpy(window).to(mapping)

    def _give_back(self, kept: Slots = NO_SLOTS) -> None:
        """Free with SGLang's allocators what became free in the tree, but not the slots that a request keeps."""
        freed = {name: self._pages(name, slots) for name, slots in self._tree.take_freed().items()}
        kept_of = {FULL: kept, SWA: NO_SLOTS, MAMBA: NO_SLOTS}
        if SWA in self._names:
            kept_of[SWA] = self._window_slots(kept)
            self._unmap_windows(freed[SWA], kept_of[SWA])
        for name, pages in freed.items():
            slots = self._maps[name].unbind(pages)
            slots = slots[~np.isin(slots, kept_of[name])]
            if name == FULL and SWA in self._names:
                self._set_mapping(slots, np.zeros_like(slots))
            if len(slots):
                allocator = self._allocator(name)
                allocator.free(torch.from_numpy(slots).to(self.token_to_kv_pool_allocator.device))

    def _window_slots(self, full: Slots) -> Slots:
        mapping = self.token_to_kv_pool_allocator.full_to_swa_index_mapping
        return np.array(mapping[torch.from_numpy(full).to(mapping.device)].cpu().numpy(), dtype=np.int64)

    def _unmap_windows(self, pages: Slots, kept: Slots) -> None:
        """FULL pages that stay, and whose SWA page became free, have no SWA slots any more."""
        slots = self._maps[SWA].slots(pages)[:: self._unit(SWA)]
        pages = pages[(slots != UNBOUND) & ~np.isin(slots, kept)]
        owners = self._owner[pages]
        without = owners[self._tree.pools.partners(owners) == 0]
        full = self._maps[FULL].slots(without)
        self._set_mapping(full[full != UNBOUND], np.zeros(int((full != UNBOUND).sum()), dtype=np.int64))

    def _make_room(self, indices: Slots) -> None:
        """Evict what SGLang's allocators lack for a load-back: its FULL pages, one window, one state."""
        bare = int((self._maps[FULL].slots(self._pages(FULL, indices)) == UNBOUND).sum())
        window = self._params.sliding_window_size or 0
        wanted = {FULL: bare, SWA: -(-window // self._unit(SWA)) * self._unit(SWA), MAMBA: 1}
        options = {FULL: "num_tokens", SWA: "swa_num_tokens", MAMBA: "mamba_num"}
        for name in self._names:
            lacking = wanted[name] - self._allocator(name).available_size()
            if lacking > 0:
                self.evict(import_module(BASE).EvictParams(**{options[name]: lacking}))

    def _share_state(self, node: Node, req: Any) -> None:
        """Let a request start from a node's state: SGLang copies it to the request's own slot before it computes."""
        state = self._tree.slots_to(node, MAMBA)
        if not len(state):
            return
        owner = req.kv if hasattr(getattr(req, "kv", None), "mamba_pool_idx") else req
        if owner.mamba_pool_idx is None:
            owner.mamba_pool_idx = self._own_state_slot(node)
        owner.mamba_cow_src_index = self._tensor(MAMBA, state)
        owner.mamba_needs_clear = False

    def _own_state_slot(self, node: Node) -> torch.Tensor:
        taken = self._take(MAMBA, 1)
        if taken is None:
            receipt = self._tree.lock(node)
            self.evict(import_module(BASE).EvictParams(mamba_num=1))
            self._tree.unlock(receipt)
            taken = self._take(MAMBA, 1)
        if taken is None:
            raise SlotError("no slot is free for a request's state, and none can be evicted")
        return torch.from_numpy(taken).to(self.token_to_kv_pool_allocator.device)[0]

    # Copies and locks.

    def _copy(self) -> None:
        """Make the copies that are due, all of them."""
        if self._tree.config.host is not None:
            self._tree.drain()

    def _number(self, node: Node, params: Any) -> int | None:
        """The number of a lock: that of the receipt, else of the last lock on the node. The root may have none."""
        number = params if isinstance(params, int) else None
        for name in ("node_id", "swa_uuid_for_lock"):
            number = getattr(params, name, None) if number is None else number
        if number in self._held:
            return int(number)
        for other in reversed(self._held):
            if self._held[other].node is node:
                return other
        if node.is_root:
            return None
        raise ReceiptError(f"there is no lock on {node!r}, got {params!r}")

    def _unlock_window(self, node: Node, params: Any) -> None:
        number = self._number(node, params)
        if number is not None:
            held = self._held[number]
            held.receipt = self._tree.unlock_window(held.receipt)
            self._give_back()
