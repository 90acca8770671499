"""The totals of a trace: requests, tokens, footprint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hicache.testing.traces.format import TraceRequest, page_runs


@dataclass(frozen=True, slots=True)
class Survey:
    """Totals of a trace.

    `footprint_tokens`: the slots for all distinct pages. An incomplete last page counts as a whole page.
    """

    requests: int
    input_tokens: int
    footprint_tokens: int


def survey(requests: Iterable[TraceRequest], page_size: int) -> Survey:
    """Read the trace once. Memory is one number per distinct block."""
    count = input_tokens = 0
    pages_of: dict[int, int] = {}
    for request in requests:
        count += 1
        input_tokens += request.input_length
        for prefix, pages in page_runs(request, page_size, begun=True):
            pages_of[prefix] = max(pages, pages_of.get(prefix, 0))
    return Survey(requests=count, input_tokens=input_tokens, footprint_tokens=sum(pages_of.values()) * page_size)
