"""The defects that the pages of docs/findings describe, with their fields, and the table of them.

`python -m hicache.tests.inventory.findings` writes the table in docs/findings.md anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hicache.tests.inventory.reference import between, marks, table

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "findings.md"
ENGINES = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "lmcache": "LMCache",
    "lmdeploy": "lmdeploy",
    "mlx_lm": "mlx-lm",
    "mini_sglang": "mini-sglang",
    "nano_vllm": "nano-vllm",
}
"""The engines by the names of their pages."""

NAME = "findings"
FIELDS = re.compile(r"\n- Clause: (?P<clauses>.+)\n- Release: (?P<releases>.+)\n- Upstream: (?P<upstream>.+)\n\n")


class Finding(NamedTuple):
    """A defect. `section`: the cache that has it. `steps`: whether numbered steps follow."""

    engine: str
    section: str
    title: str
    clauses: tuple[str, ...]
    releases: tuple[str, ...]
    upstream: str
    steps: bool

    @property
    def anchor(self) -> str:
        """The anchor of its heading."""
        return re.sub(r"[^\w -]", "", self.title).lower().replace(" ", "-")


def findings() -> Iterator[Finding]:
    """Every defect, in the order of the pages. Raises ValueError for an entry without its fields."""
    for engine in ENGINES:
        yield from entries(engine, (PAGE.parent / NAME / f"{engine}.md").read_text(encoding="utf-8"))


def entries(engine: str, text: str) -> Iterator[Finding]:
    """The defects of the page of an engine: each heading of the third level but "By design"."""
    for section in re.split(r"(?m)^## ", text)[1:]:
        for entry in re.split(r"(?m)^### ", section)[1:]:
            title, _, body = entry.partition("\n")
            if title != "By design":
                yield _finding(engine, section.partition("\n")[0], title, body)


def _finding(engine: str, section: str, title: str, body: str) -> Finding:
    fields = FIELDS.match(body)
    if fields is None:
        raise ValueError(f"{engine}: {title}: expected the fields Clause, Release and Upstream, in this order")
    return Finding(
        engine=engine,
        section=section,
        title=title,
        clauses=tuple(fields["clauses"].split(", ")),
        releases=tuple(fields["releases"].split(", ")),
        upstream=fields["upstream"],
        steps=bool(re.search(r"(?m)^1\. ", body)),
    )


def findings_table() -> str:
    """One row for each defect."""
    rows = (
        (
            ENGINES[one.engine],
            f"[{one.title.partition(' (')[0]}]({NAME}/{one.engine}.md#{one.anchor})",
            ", ".join(one.clauses),
            ", ".join(one.releases),
            ", ".join(re.findall(r"\[[^\]]*#\d+\]\([^)]*\)", one.upstream)) or "none",
        )
        for one in findings()
    )
    return table(("engine", "defect", "clause", "release", "upstream"), rows)


def main() -> None:
    """Write the table."""
    text, (begin, end) = PAGE.read_text(encoding="utf-8"), marks(NAME)
    old = f"{begin}{between(text, NAME)}{end}"
    PAGE.write_text(text.replace(old, f"{begin}{findings_table()}{end}"), encoding="utf-8")


if __name__ == "__main__":
    main()
