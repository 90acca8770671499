"""The page: passes by tasks, how far apart their tokens were, where those came from and what time that saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hicache.testing.report.pages import templates

from .judged_pass import JudgedPass

TEMPLATE = Path(__file__).parent / "templates" / "accuracy.html"


def render_page(title: str, settings: Mapping[str, str], passes: Sequence[JudgedPass]) -> str:
    """One page that needs nothing beside it."""
    template = templates().from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(title=title, settings=settings, passes=passes)
