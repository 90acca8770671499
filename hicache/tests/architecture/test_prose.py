"""What is checked of the English of docstrings, comments, messages and documentation: phrases that hide the noun."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hicache.testing.plugin.tags import SUITES
from hicache.tests.architecture.test_shape import ROOT

TREES = ("hicache", *SUITES, "examples", "docs", ".github")
SUFFIXES = frozenset({".py", ".md", ".toml", ".yml", ".ini", ".j2"})

# Lists of others quote the sentences of the contract, and a changelog is history.
EXEMPT = frozenset({"contract.toml", "CHANGELOG.md", Path(__file__).name})


class Phrase(NamedTuple):
    """A phrase to avoid. `pattern`: spaces match line breaks as well. `bad`, `good`: the same thing said both ways."""

    pattern: str
    bad: str
    good: str


OF_OTHERS = ("cuda",)
"""Packages of the kit whose words are those of their subject: the observer of torch."""

NEGATED = r"no (?!longer|more|other|larger|smaller|less|better|different|fewer|later|earlier|such|worse|slower)[a-z]"
PHRASES = {
    "a negated noun": Phrase(rf"(?<!there\s)\b(is|are|was|were) {NEGATED}", "nan is no number", "nan is not a number"),
    "a clause for a noun": Phrase(
        r"\b(what|that|which) (is|are|was|were) (no(?! longer)|of)\b",
        "it gave what is no answer",
        "an invalid value",
    ),
    "a person for a state": Phrase(r"\b(no|some|any)body\b", "it belongs to nobody", "it has no owner"),
    "whatever": Phrase(r"\b(what|who|which)ever\b", "end it, whatever it raised", "end it, also after an error"),
    "for ever": Phrase(r"\bfor ever\b", "it waits for ever", "it waits forever"),
    "by now": Phrase(r"\bby now\b", "what it has by now", "what it has inserted"),
    "has of": Phrase(r"\b(has|have|had) of\b(?! \d)", "the pages that storage has of it", "its pages in storage"),
    "as it is": Phrase(r"\bas (it|they) (is|are)(?=[.,:;)]| and\b| or\b|$)", "taken as it is.", "taken unchanged."),
    "told": Phrase(r"(?<!`)\btold\b(?!`)", "the backend is told the dtype", "the backend gets the dtype"),
    "to be had": Phrase(r"\b(is|are|was|were|be) had\b", "memory that cannot be had", "unavailable memory"),
    "the words of a court": Phrase(
        r"\b(forg[ia]ve[ns]?|excuse[ds]?|outdate[ds]?|hears?|heard)\b(?!`)",
        "never heard of",
        "a silent rank",
    ),
}
NAMES = re.compile(
    r"(?:^|_)(told|hears?|heard|acts?|scenes?|excuse[ds]?|forg[ia]ve[ns]?|outdated?)(?:_|$)", re.IGNORECASE
)
"""Words of a court or a theatre in the names of the kit. `evidence` is a key of run.json, and `verdict` documented."""

ANY = re.compile("|".join(f"(?:{phrase.pattern})" for phrase in PHRASES.values()).replace(" ", r"\s+"), re.IGNORECASE)


def names_of_cases(tree: ast.AST) -> set[int]:
    """The nodes whose text is the id of a test: keys of tables, and ids of parameters. Lists of failures cite them."""
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys if key]
    named = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in {"id", "ids"}]
    return {id(part) for root in (*keys, *named) for part in ast.walk(root)}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file and the lines where they begin: of a module its comments and strings, else the whole text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    if not ANY.search(re.sub(r"[\"'#\s]+", " ", text)):  # most modules need not be parsed
        return
    tree = ast.parse(text)
    ids = names_of_cases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value and id(node) not in ids:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def private(path: Path) -> Iterator[str]:
    """One line for each phrase of the file that is to be said in plain words."""
    for line, text in prose(path):
        for match in ANY.finditer(text):
            yield f"{path}:{line + text.count(chr(10), 0, match.start())}: {' '.join(match[0].split())!r}"


def private_names(path: Path) -> Iterator[str]:
    """One line for each name of a module that has a word of a court or a theatre."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME and NAMES.search(token.string):
            yield f"{path}:{token.start[0]}: {token.string}"


def texts(root: Path) -> list[Path]:
    """Every file of the project that has prose, but those that quote others."""
    found = [path for tree in TREES for path in (root / tree).rglob("*")]
    paths = (path for path in (*root.iterdir(), *found) if path.suffix in SUFFIXES and path.name not in EXEMPT)
    return sorted(paths)


def test_the_prose_is_plain() -> None:
    paths = texts(ROOT)
    assert len(paths) > 20, f"hardly a file was found below {ROOT}: {paths}"
    found = [line for path in paths for line in private(path)]
    assert not found, "say it in plain words, with the noun first:\n" + "\n".join(found)


def test_the_names_of_the_kit_are_plain(tmp_path: Path) -> None:
    kit = [path for path in (ROOT / "hicache" / "testing").rglob("*.py") if path.parent.name not in OF_OTHERS]
    paths = [*kit, *(ROOT / "properties").rglob("*.py")]
    assert len(paths) > 20, f"hardly a module was found below {ROOT}: {paths}"
    found = [line for path in paths for line in private_names(path)]
    assert not found, "take a word of pytest, such as result, record, stale or report:\n" + "\n".join(found)
    example = tmp_path / "example.py"
    example.write_text("def hear(is_told, exact):\n    OUTDATED = is_told\n", encoding="utf-8")
    assert len(list(private_names(example))) == 4, f"expected four names, got {list(private_names(example))}"


@pytest.mark.parametrize("phrase", PHRASES.values(), ids=PHRASES)
def test_each_phrase_is_found_and_its_plain_form_is_not(phrase: Phrase) -> None:
    pattern = re.compile(phrase.pattern, re.IGNORECASE)
    assert pattern.search(phrase.bad), f"expected {phrase.pattern} in {phrase.bad!r}"
    assert not ANY.search(phrase.good), f"expected no phrase in {phrase.good!r}, got {ANY.search(phrase.good)}"


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("f.py", 'told = 1\n"""It waits\nfor ever."""\n', [3]),
        ("f.py", "x = 1  # nobody\n", [1]),
        ("f.py", 'CASES = {"nobody": f"x{1} told"}\n', [1]),
        ("f.md", "A wait\nthat lasts for\never.\n", [2]),
        ("f.toml", 'reason = "it is told"\n', [1]),
        ("f.py", 'p(1, id="nobody")\n', []),
    ],
    ids=["docstring", "comment", "message", "across lines", "table", "id"],
)
def test_prose_is_read_where_it_stands(tmp_path: Path, name: str, text: str, lines: list[int]) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    found = [int(line.removeprefix(f"{path}:").split(":")[0]) for line in private(path)]
    assert found == lines, f"expected findings in lines {lines}, got {found}"
