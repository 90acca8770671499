"""The report page: scores of each pass by task, hits by tier, waiting times, and the divergence of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hicache.testing.report.pages import templates

from .compared_pass import ComparedPass

TEMPLATE = Path(__file__).parent / "templates" / "accuracy.html"


def render_page(title: str, settings: Mapping[str, str], passes: Sequence[ComparedPass]) -> str:
    """One self-contained HTML page."""
    template = templates().from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(title=title, settings=settings, passes=passes)
