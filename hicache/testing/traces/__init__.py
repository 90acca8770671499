"""Traces in Mooncake's format: read them, generate them, and make their tokens.

Three traces are public, in the repository kvcache-ai/Mooncake under `FAST25-release/traces/` (Apache-2.0):
`conversation_trace.jsonl`, `toolagent_trace.jsonl` and `synthetic_trace.jsonl`.
"""

from hicache.testing.traces.format import BLOCK_TOKENS, Trace, TraceRequest, request_tokens, write_trace
from hicache.testing.traces.generate import (
    AGENTS,
    SHIPPED_SEED,
    SHIPPED_TRACE,
    SHORT_TRACE,
    AgentShape,
    TraceShape,
    generate_agents,
    generate_trace,
)

__all__ = [
    "AGENTS",
    "BLOCK_TOKENS",
    "SHIPPED_SEED",
    "SHIPPED_TRACE",
    "SHORT_TRACE",
    "AgentShape",
    "Trace",
    "TraceRequest",
    "TraceShape",
    "generate_agents",
    "generate_trace",
    "request_tokens",
    "write_trace",
]
