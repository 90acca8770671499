"""The requests of vLLM for the prompts of the suites, with hashes that vLLM makes.

vLLM keeps the hash of a prefix and not its tokens. What each hash stands for is remembered here, so that a snapshot can
name the prefix of a block.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np

from hicache.engines.vllm.imports import import_from
from hicache.types import Key, Namespace

TOKEN_BYTES = 4


class VllmRequests:
    """Makes requests whose tokens are hashed in blocks of `hash_block` tokens."""

    def __init__(self, hash_block: int) -> None:
        module = import_from("vllm.v1.core.kv_cache_utils")
        sha256_cbor = import_from("vllm.utils.hashing", "sha256_cbor")[0]
        module.init_none_hash(sha256_cbor)
        self._hasher = module.get_request_block_hasher(hash_block, sha256_cbor)
        self._hash_block = hash_block
        self._numbers = itertools.count(1)
        self._loras: dict[str, int] = {}
        # By the hash of a block: the namespace, the bytes of a prompt that has it, and how many of these end with it.
        self._prefixes: dict[bytes, tuple[Namespace, bytes, int]] = {}

    def new(self, key: Key, sampling: Any = None, **fields: Any) -> Any:
        """A request of vLLM; its salt is a text that differs for each salt and tenant.

        `sampling`: the parameters of a request that generates. `fields`: further arguments of vLLM's class.
        """
        (request_type,) = import_from("vllm.v1.request", "Request")
        (parameters_type,) = import_from("vllm.pooling_params", "PoolingParams")
        (lora_type,) = import_from("vllm.lora.request", "LoRARequest")
        space, lora = key.namespace, None
        if space.lora is not None:
            number = self._loras.setdefault(space.lora, len(self._loras) + 1)
            lora = lora_type(space.lora, number, f"adapters/{number}")
        salt = None if space.salt is space.tenant is None else json.dumps([space.salt, space.tenant])
        name, tokens = str(next(self._numbers)), key.tokens.tolist()
        pooling = parameters_type() if sampling is None else None
        extras = {"lora_request": lora, "cache_salt": salt, "block_hasher": self._hasher, **fields}
        request = request_type(name, tokens, sampling, pooling, **extras)
        self.remember(request, space)
        return request

    def remember(self, request: Any, namespace: Namespace) -> None:
        """Note the tokens of every hash of a request."""
        data = np.array(request.all_token_ids[:], dtype="<i4").tobytes()
        step = self._hash_block * TOKEN_BYTES
        for number, digest in enumerate(request.block_hashes, 1):
            self._prefixes.setdefault(bytes(digest), (namespace, data, number * step))

    def prefix(self, digest: bytes) -> tuple[Namespace, bytes]:
        """What a hash stands for: the namespace, and all tokens up to the end of the block, as in a snapshot."""
        namespace, prompt, end = self._prefixes[digest]
        return namespace, prompt[:end]
