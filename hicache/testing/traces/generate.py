"""Generated traces with the shape of the public ones: conversations that share system prompts and grow by turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hicache.testing.traces.format import BLOCK_TOKENS, TraceRequest


@dataclass(frozen=True, slots=True)
class TraceShape:
    """The shape of a generated trace. Lengths are in tokens; `spread`: the sigma of the log-normal distributions."""

    requests: int
    system_prompts: int
    system_length_median: int
    live_conversations: int
    turns_mean: float
    message_length_median: int
    answer_length_median: int
    spread: float
    longest_input: int
    interval_mean_ms: float


SHORT_TRACE = TraceShape(
    requests=200,
    system_prompts=4,
    system_length_median=800,
    live_conversations=16,
    turns_mean=2.5,
    message_length_median=1000,
    answer_length_median=250,
    spread=1.2,
    longest_input=16_384,
    interval_mean_ms=300.0,
)
"""Two hundred requests with the proportions of the conversation trace, but shorter."""

SHIPPED_TRACE = Path(__file__).parent / "conversations.jsonl"
"""The trace `generate_trace(SHORT_TRACE, SHIPPED_SEED)`, as `write_trace` writes it."""

SHIPPED_SEED = 1


class _Conversation:
    """The number of tokens so far, and the ids of the whole blocks."""

    def __init__(self, length: int, blocks: list[int]) -> None:
        self.length = length
        self.blocks = blocks

    def grow(self, tokens: int, fresh: Iterator[int]) -> None:
        """Append tokens, and give an id to each new whole block."""
        self.length += tokens
        self.blocks.extend(itertools.islice(fresh, self.length // BLOCK_TOKENS - len(self.blocks)))

    def prompt(self, fresh: Iterator[int]) -> tuple[int, ...]:
        """All block ids. An incomplete last block gets an id that only this prompt has, as the next turn extends it."""
        partial = itertools.islice(fresh, 1 if self.length % BLOCK_TOKENS else 0)
        return (*self.blocks, *partial)


def generate_trace(shape: TraceShape, seed: int) -> Iterator[TraceRequest]:
    """Yield `shape.requests` requests, the same for the same seed; block ids count from 0 in order of appearance."""
    random = Random(seed)
    fresh = itertools.count()
    prompts = [
        _Conversation(_length(random, shape.system_length_median, shape), []) for _ in range(shape.system_prompts)
    ]
    live: list[_Conversation] = []
    arrival_ms = 0.0
    for _ in range(shape.requests):
        conversation = _next_conversation(random, live, prompts, shape, fresh)
        conversation.grow(_message_length(random, conversation, shape), fresh)
        answer = _length(random, shape.answer_length_median, shape)
        yield TraceRequest(int(arrival_ms), conversation.length, answer, conversation.prompt(fresh))
        conversation.length += answer
        if conversation.length >= shape.longest_input or random.random() * shape.turns_mean < 1.0:
            live.remove(conversation)
        arrival_ms += random.expovariate(1.0 / shape.interval_mean_ms)


def _next_conversation(
    random: Random, live: list[_Conversation], prompts: list[_Conversation], shape: TraceShape, fresh: Iterator[int]
) -> _Conversation:
    """A live conversation, or a new one that starts with one of the system prompts."""
    if live and random.random() * shape.live_conversations < len(live):
        return random.choice(live)
    prompt = random.choice(prompts)
    prompt.grow(0, fresh)
    live.append(_Conversation(prompt.length, list(prompt.blocks)))
    return live[-1]


def _message_length(random: Random, conversation: _Conversation, shape: TraceShape) -> int:
    room = max(1, shape.longest_input - conversation.length)
    return min(_length(random, shape.message_length_median, shape), room)


def _length(random: Random, median: int, shape: TraceShape) -> int:
    """A length with a heavy-tailed distribution: at least one token, and at most half of the longest input."""
    return max(1, min(int(median * random.lognormvariate(0.0, shape.spread)), shape.longest_input // 2))
