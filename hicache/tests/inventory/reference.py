"""The tables of the reference pages that are read from the source.

`python -m hicache.tests.inventory.reference` writes them anew, each between the marks with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import typer
from typer.main import get_command

from hicache.cli.app import app
from hicache.config import CacheConfig
from hicache.testing.adapter import METHODS, Capability
from hicache.testing.configurations import standard_configurations
from hicache.testing.contract import CONTRACT
from hicache.testing.plugin.options import OPTIONS
from hicache.tests.inventory.departures import departures_table
from hicache.tests.proof.only_full import only_full

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "reference"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    cells = tuple(head)
    lines = [cells, ("---",) * len(cells), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def methods_table() -> str:
    """The methods that an adapter writes for each capability."""
    return table(("capability", "methods"), ((f"`{one.name}`", in_code(names)) for one, names in METHODS.items()))


def clauses_table() -> str:
    """The clauses that need each capability, and those that need none."""
    needed = {f"`{one.name}`": [clause.id for clause in CONTRACT.values() if one in clause.needs] for one in Capability}
    rows = {"none": [clause.id for clause in CONTRACT.values() if not clause.needs], **needed}
    return table(("capability", "clauses"), ((name, ", ".join(ids)) for name, ids in rows.items() if ids))


def configurations_table() -> str:
    """The page sizes of the standard configurations, by components, sidecars and the lowest tier."""
    tiers = {"device": 0, "with a host": 1, "with storage": 2}
    sizes: dict[str, tuple[set[int], ...]] = {}
    for config in standard_configurations(frozenset(Capability)):
        cells = sizes.setdefault(config.name.partition("/")[0], tuple(set() for _ in tiers))
        cells[_tier(config)].add(config.page_size)
    rows = ((f"`{name}`", *(", ".join(map(str, sorted(cell))) for cell in cells)) for name, cells in sizes.items())
    return table(("components and sidecars", *tiers), rows)


def _tier(config: CacheConfig) -> int:
    return 0 if config.host is None else 1 if config.storage is None else 2


def suite_options_table() -> str:
    """The options of pytest."""
    rows = ((f"`{one.flag}`", one.metavar, f"`{one.variable}`", f"`{one.ini}`", one.help) for one in OPTIONS)
    return table(("command line", "value", "environment", "ini file", "what it is"), rows)


def commands_table() -> str:
    """The arguments and options of each command."""
    head, found = ("argument or option", "what it is"), _commands("hicache", get_command(app))
    return "\n".join(f"### `{name}`\n\n{summary}\n\n{table(head, rows)}" for name, summary, rows in found)


def _commands(name: str, command: object) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    if isinstance(command, typer.core.TyperGroup):
        for part, one in sorted(command.commands.items()):
            yield from _commands(f"{name} {part}", one)
    elif isinstance(command, typer.core.TyperCommand):
        options = [(in_code(one.opts), str(getattr(one, "help", None) or "")) for one in command.params]
        yield name, (command.help or "").partition("\n")[0], options


def in_code(names: Iterable[str]) -> str:
    """The names between backquotes."""
    return ", ".join(f"`{name}`" for name in names)


def only_full_table() -> str:
    """The mutants that `make test` does not find."""
    return table(("mutants", "why"), ((in_code(names), reason) for reason, names in only_full().items()))


TABLES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "methods": ("verbs.md", methods_table),
    "clauses": ("capabilities.md", clauses_table),
    "configurations": ("configurations.md", configurations_table),
    "suite options": ("options.md", suite_options_table),
    "commands": ("options.md", commands_table),
    "mutants": ("../ci.md", only_full_table),
    "departures": ("known_failures.md", lambda: departures_table(ROOT)),
}
"""The pages and the tables, by the name between the marks."""


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a table."""
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"


def between(text: str, name: str) -> str:
    """The table that a page has. Raises ValueError without the marks."""
    begin, end = marks(name)
    _, found, rest = text.partition(begin)
    shown, closed, _ = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"expected {begin.strip()} and {end.strip()}")
    return shown


def main() -> None:
    """Write every table."""
    for name, (page, made) in TABLES.items():
        path, (begin, end) = PAGES / page, marks(name)
        text = path.read_text(encoding="utf-8")
        old = f"{begin}{between(text, name)}{end}"
        path.write_text(text.replace(old, f"{begin}{made()}{end}"), encoding="utf-8")


if __name__ == "__main__":
    main()
