"""InspectedTree: the drop-in with what SGLang's own unit tests read of a node and of the tree."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hicache.integrations.sglang_radix_cache import ReferenceTree, drop_in_class
from hicache.tree.node import Node
from hicache.types import Component

RADIX_KEY = "sglang.srt.mem_cache.radix_cache"


@dataclass(frozen=True, slots=True)
class DataView:
    """What SGLang calls the data of a component: slots on each tier, or None, and locks."""

    value: torch.Tensor | None
    host_value: torch.Tensor | None
    lock_ref: int
    host_lock_ref: int


class NodeView:
    """A node of the reference with the fields of SGLang's nodes that tests read."""

    def __init__(self, tree: InspectedTree, node: Node) -> None:
        self.tree = tree
        self.node = node
        self.id = len(tree.views)

    @property
    def evicted(self) -> bool:
        return not self.node.is_root and self.node.device[0].value is None

    @property
    def backuped(self) -> bool:
        return bool(self.node.host) and self.node.host[0].value is not None

    @property
    def parent(self) -> NodeView | None:
        return None if self.node.parent is None else self.tree.view(self.node.parent)

    @property
    def children(self) -> Mapping[bytes, NodeView]:
        return {edge: self.tree.view(child) for edge, child in self.node.children.items()}

    @property
    def key(self) -> Any:
        tokens = array("q", np.frombuffer(self.node.key, dtype=np.int32).tolist())
        return import_module(RADIX_KEY).RadixKey(tokens, self.node.namespace.lora)

    @property
    def priority(self) -> int:
        return self.node.priority

    @property
    def hit_count(self) -> int:
        return self.node.hit_count

    @property
    def component_data(self) -> Mapping[Any, DataView]:
        return {kind: self._data(kind.name.lower()) for kind in self.tree.tree_components}

    def _data(self, name: str) -> DataView:
        reference = self.tree.opened
        index = list(reference.tree.by_name).index(name)
        own, twin = self.node.device[index], self.node.host[index] if self.node.host else None
        pages = own.value
        if name == Component.SWA and pages is not None:
            pages = reference.pools.partners(pages)
        return DataView(
            None if pages is None else self.tree.tensor(name, reference.pools.component_slots(name, pages)),
            None if twin is None or twin.value is None else torch.from_numpy(twin.value.copy()),
            own.lock_ref,
            0 if twin is None else twin.lock_ref,
        )


class InspectedTree(ReferenceTree):
    """Handles are views of nodes, or their numbers. It has what SGLang's tests call beside the interface."""

    views: dict[Node, NodeView]

    def __init__(self, params: Any) -> None:
        self.views = {}
        super().__init__(params)

    @property
    def opened(self) -> Any:
        return self.reference

    def tensor(self, name: str, slots: Any) -> torch.Tensor:
        return self._tensor(name, slots)

    def view(self, node: Node) -> NodeView:
        if node not in self.views:
            self.views[node] = NodeView(self, node)
        return self.views[node]

    def resolve_node_handle(self, node_handle: Any) -> Any:
        return list(self.views.values())[node_handle] if isinstance(node_handle, int) else node_handle

    def node(self, handle: Any) -> Node:
        view = self.resolve_node_handle(handle)
        node: Node = getattr(view, "node", view)
        return node

    def path_device_indices(self, node: Any) -> torch.Tensor:
        return super().path_device_indices(self.node(node))

    def init_hicache(self, server_args: Any, params: Any) -> None:
        super().init_hicache(server_args, params)
        self.cache_controller = SimpleNamespace(ack_load_queue=[], write_policy=server_args.hicache_write_policy)

    def match_prefix(self, params: Any) -> Any:
        found = super().match_prefix(params)
        names = ("last_device_node", "last_host_node", "best_match_node")
        return found._replace(**{name: self.view(getattr(found, name)) for name in names})

    def insert(self, params: Any) -> Any:
        result = super().insert(params)
        if getattr(result, "last_device_node", None) is not None:
            result.last_device_node = self.view(result.last_device_node)
        return result

    def inc_lock_ref(self, node: Any, skip_lock_components: Any = ()) -> Any:
        return super().inc_lock_ref(self.node(node), skip_lock_components)

    def dec_lock_ref(self, node: Any, params: Any = None, skip_swa: bool = False) -> Any:
        return super().dec_lock_ref(self.node(node), params, skip_swa)

    def dec_swa_lock_only(self, node: Any, swa_uuid_for_lock: int | None = None, *_: object) -> None:
        super().dec_swa_lock_only(self.node(node), swa_uuid_for_lock)

    def load_back(self, node: Any, mem_quota: int | None = None, req: Any = None) -> bool:
        return super().load_back(self.node(node), mem_quota, req)

    def init_load_back(self, params: Any) -> Any:
        request, anchor = params.req, params.req.last_node
        request.last_node = self.node(anchor)
        inner = SimpleNamespace(
            best_match_node=self.node(params.best_match_node), mem_quota=params.mem_quota, req=request
        )
        indices, node = super().init_load_back(inner)
        request.last_node = anchor
        return indices, self.view(node)

    def ready_to_load_host_cache(self) -> int:
        return 0  # tests wait for the number of a load

    def write_backup(self, node: Any, write_back: bool = False) -> int:
        own = self.node(node)
        self.opened.backup(own)
        self._copy()
        return own.pages * self._unit(Component.FULL) if self.view(own).backuped else 0

    def _execute_and_commit_kv_backup(self, action: Any, write_back: bool = False) -> int:
        return self.write_backup(action.node_ids[-1], write_back)

    def writing_check(self, *_: object, **__: object) -> None:
        self._copy()

    def loading_check(self, *_: object, **__: object) -> None:
        self._copy()

    def evict_host(self, num_tokens: int, component_type: Any = None) -> int:
        name = Component.FULL.value if component_type is None else component_type.name.lower()
        return int(self.opened.evict_host(name, num_tokens).freed[name])

    def _root(self) -> Any:
        return self.view(super()._root())

    def _collect_all_nodes(self) -> list[NodeView]:
        return list(self._below(self.opened.tree.radix.root))

    def _below(self, node: Node) -> Iterator[NodeView]:
        yield self.view(node)
        for child in node.children.values():
            yield from self._below(child)

    @property
    def component_evictable_size_(self) -> Mapping[Any, int]:
        sizes = self.opened.sizes()
        return {kind: sizes[kind.name.lower()].evictable for kind in self.tree_components}

    @component_evictable_size_.setter
    def component_evictable_size_(self, sizes: Mapping[Any, int]) -> None:
        """SGLang's own tree, which stays empty, sets its counters."""

    @property
    def component_protected_size_(self) -> Mapping[Any, int]:
        sizes = self.opened.sizes()
        return {kind: sizes[kind.name.lower()].protected for kind in self.tree_components}

    @component_protected_size_.setter
    def component_protected_size_(self, sizes: Mapping[Any, int]) -> None:
        """The same for its counters of locked slots."""


def inspected_class() -> Any:
    """The drop-in for SGLang's own tests. Raises ImportError when SGLang is not installed."""
    return type("InspectedRadixCache", (InspectedTree, drop_in_class()), {})
