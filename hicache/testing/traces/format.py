"""The requests of a trace in Mooncake's format: one JSON object per line, read as a stream; their tokens and pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from hicache.errors import TraceError
from hicache.types import Tokens

BLOCK_TOKENS = 512
"""The number of tokens of one id in `hash_ids`, where a line has no `block_size`, and the most that it may say."""

BLOCK_IDS = 2**31
"""Block ids are below this, so that one token identifies its block."""

_STEPS = np.arange(BLOCK_TOKENS, dtype=np.uint32) * np.uint32(0x9E3779B1)
_LOW_BITS = np.uint32(BLOCK_IDS - 1)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: arrival time, input and output length in tokens, and block ids. Equal ids are equal prefixes.

    `block_tokens`: of each block but the last one, which may be shorter.
    """

    timestamp_ms: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    block_tokens: int = BLOCK_TOKENS


class Trace:
    """A trace on disk. Each iteration streams the file from its start and holds one line at a time.

    `limit`: how many requests to read, or None for all. A malformed line raises TraceError, which names file, line
    and reason; with `skip_bad` the line is skipped, and `skipped` counts the skipped lines of the last iteration.
    """

    def __init__(self, path: Path, *, skip_bad: bool, limit: int | None) -> None:
        self.path = path
        self.skip_bad = skip_bad
        self.limit = limit
        self.skipped = 0

    def __iter__(self) -> Iterator[TraceRequest]:
        return islice(self._stream(), self.limit)

    def _stream(self) -> Iterator[TraceRequest]:
        self.skipped = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    request = parse_request(line)
                except (ValueError, RecursionError) as error:
                    if not self.skip_bad:
                        raise TraceError(f"{self.path}, line {number}: {error}") from error
                    self.skipped += 1
                else:
                    yield request


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Write requests in the given order, one per line."""
    with path.open("w", encoding="utf-8") as lines:
        for request in requests:
            fields = asdict(request)
            size = fields.pop("block_tokens")
            others = {} if size == BLOCK_TOKENS else {"block_size": size}
            lines.write(json.dumps({"timestamp": fields.pop("timestamp_ms"), **fields, **others}) + "\n")


def request_tokens(request: TraceRequest) -> Tokens:
    """Token ids, int32, shape [input_length], none negative, derived from the block ids, as a trace has no text.

    Token i of block b is `(b + i * constant) mod 2**31`: a function of b alone. Two blocks differ in every token, so
    that they never share a page of any size.
    """
    blocks = np.asarray(request.hash_ids, dtype=np.uint32)
    tokens = (blocks[:, np.newaxis] + _STEPS[: request.block_tokens]) & _LOW_BITS
    return tokens.view(np.int32).reshape(-1)[: request.input_length]


def page_runs(request: TraceRequest, page_size: int, *, begun: bool) -> list[tuple[int, int]]:
    """For each block in which pages end: a number for the prefix up to the block's end, and how many pages end in it.

    Numbers are 64-bit hashes: equal for equal prefixes. `begun`: an incomplete last page counts too.
    """
    length = request.input_length + (-request.input_length % page_size if begun else 0)
    last = len(request.hash_ids)
    runs = []
    pages = 0
    for place, prefix in enumerate(accumulate(request.hash_ids, _extended), start=1):
        ended = (length if place == last else place * request.block_tokens) // page_size
        if ended > pages:
            runs.append((prefix, ended - pages))
            pages = ended
    return runs


def _extended(prefix: int, block: int) -> int:
    return hash((prefix, block))


def parse_request(line: bytes) -> TraceRequest:
    """Read one line. Raises ValueError with the reason when it is not a request."""
    table = json.loads(line)
    if not isinstance(table, dict):
        raise ValueError(f"the line is a {type(table).__name__}, not an object")
    request = TraceRequest(
        timestamp_ms=_natural(table, "timestamp"),
        input_length=_natural(table, "input_length"),
        output_length=_natural(table, "output_length"),
        hash_ids=_block_ids(table),
        block_tokens=_block_tokens(table),
    )
    blocks = -(-request.input_length // request.block_tokens)
    if len(request.hash_ids) != blocks:
        raise ValueError(
            f"input_length {request.input_length} takes {blocks} blocks of {request.block_tokens} tokens, "
            f"hash_ids has {len(request.hash_ids)}"
        )
    return request


def _natural(table: dict[str, Any], field: str) -> int:
    value = _field(table, field)
    if type(value) is not int or value < 0:
        raise ValueError(f"{field} is {value!r}, not an integer of 0 or more")
    return value


def _block_tokens(table: dict[str, Any]) -> int:
    size = table.get("block_size", BLOCK_TOKENS)
    if type(size) is not int or not 1 <= size <= BLOCK_TOKENS:
        raise ValueError(f"block_size is {size!r}, not an integer from 1 to {BLOCK_TOKENS}")
    return size


def _block_ids(table: dict[str, Any]) -> tuple[int, ...]:
    ids = _field(table, "hash_ids")
    if type(ids) is not list:
        raise ValueError(f"hash_ids is {ids!r}, not a list")
    for block in ids:
        if type(block) is not int or not 0 <= block < BLOCK_IDS:
            raise ValueError(f"hash_ids holds {block!r}, not an integer from 0 to {BLOCK_IDS - 1}")
    return tuple(ids)


def _field(table: dict[str, Any], field: str) -> Any:
    if field not in table:
        raise ValueError(f"{field} is missing")
    return table[field]
