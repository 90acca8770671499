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


@dataclass(frozen=True, slots=True)
class AgentShape:
    """The shape of a generated trace of agents. Lengths are in tokens; `spread` as in TraceShape.

    An agent starts with instructions that all agents share, appends results of its tools turn by turn, and starts
    sub-agents at a share of its turns. These start with instructions of their own, which all sub-agents share, and with
    what is known of their task; the agent goes on when they have ended.
    """

    requests: int
    live_agents: int
    instructions_length: int
    sub_instructions_length: int
    turns_mean: float
    sub_turns_mean: float
    sub_agent_share: float
    most_sub_agents: int
    result_length_median: int
    answer_length_median: int
    spread: float
    longest_input: int
    interval_mean_ms: float


AGENTS = AgentShape(
    requests=600,
    live_agents=12,
    instructions_length=12_000,
    sub_instructions_length=6_000,
    turns_mean=24.0,
    sub_turns_mean=6.0,
    sub_agent_share=0.12,
    most_sub_agents=3,
    result_length_median=700,
    answer_length_median=250,
    spread=1.2,
    longest_input=65_536,
    interval_mean_ms=400.0,
)
"""Six hundred requests with the proportions of Weka's agent traces, but shorter."""

AGENT_BLOCK_TOKENS = 64


class _Conversation:
    """The number of tokens so far, and the ids of the whole blocks.

    `turns`, `children`: of an agent, those that are left and the sub-agents that it waits for.
    """

    def __init__(self, length: int, blocks: list[int], block_tokens: int = BLOCK_TOKENS) -> None:
        self.length = length
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.turns = 0
        self.children: list[_Conversation] = []

    def grow(self, tokens: int, fresh: Iterator[int]) -> None:
        """Append tokens, and give an id to each new whole block."""
        self.length += tokens
        self.blocks.extend(itertools.islice(fresh, self.length // self.block_tokens - len(self.blocks)))

    def prompt(self, fresh: Iterator[int]) -> tuple[int, ...]:
        """All block ids. An incomplete last block gets an id that only this prompt has, as the next turn extends it."""
        partial = itertools.islice(fresh, 1 if self.length % self.block_tokens else 0)
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


def _length(random: Random, median: int, shape: TraceShape | AgentShape) -> int:
    """A length with a heavy-tailed distribution: at least one token, and at most half of the longest input."""
    return max(1, min(int(median * random.lognormvariate(0.0, shape.spread)), shape.longest_input // 2))


def generate_agents(shape: AgentShape, seed: int) -> Iterator[TraceRequest]:
    """Yield `shape.requests` requests in blocks of 64 tokens, the same for the same seed."""
    random = Random(seed)
    fresh = itertools.count()
    instructions, of_subs = (_Conversation(0, [], AGENT_BLOCK_TOKENS) for _ in range(2))
    instructions.grow(shape.instructions_length, fresh)
    of_subs.grow(shape.sub_instructions_length, fresh)
    live: list[_Conversation] = []
    arrival_ms = 0.0
    for _ in range(shape.requests):
        while len(live) < shape.live_agents:
            live.append(_agent(random, instructions, shape.turns_mean))
        agent = _deepest(random, random.choice(live))
        room = max(1, shape.longest_input - agent.length)
        agent.grow(min(_length(random, shape.result_length_median, shape), room), fresh)
        answer = _length(random, shape.answer_length_median, shape)
        yield TraceRequest(int(arrival_ms), agent.length, answer, agent.prompt(fresh), AGENT_BLOCK_TOKENS)
        agent.grow(answer, fresh)
        agent.turns -= 1
        if agent in live and random.random() < shape.sub_agent_share:
            count = random.randint(1, shape.most_sub_agents)
            agent.children = [_agent(random, of_subs, shape.sub_turns_mean) for _ in range(count)]
        if agent.length >= shape.longest_input:
            agent.turns = 0
        live = [one for one in live if one.turns > 0 or one.children]
        arrival_ms += random.expovariate(1.0 / shape.interval_mean_ms)


def _agent(random: Random, instructions: _Conversation, turns_mean: float) -> _Conversation:
    agent = _Conversation(instructions.length, list(instructions.blocks), instructions.block_tokens)
    agent.turns = 1 + int(random.expovariate(1.0 / turns_mean))
    return agent


def _deepest(random: Random, agent: _Conversation) -> _Conversation:
    """A sub-agent that the agent waits for, or the agent itself."""
    agent.children = [child for child in agent.children if child.turns > 0]
    return random.choice(agent.children) if agent.children else agent
