"""The text of one failure, for a terminal: the clause, expected and got, the last calls, and the tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten, wrap

from hicache.testing.contract import Clause
from hicache.testing.report.legible import legible
from hicache.testing.report.run import Evidence, Execution, Step, counted, first_line

WIDTH = 78
"""The columns of a line: a command may indent the lines by two, and they still fit a terminal of 80 columns."""

MAX_STEPS = 20
MAX_NODES = 20
_MAX_LINES = 4
"""The lines of one step, of one node and of each part of a message."""

_MAX_ARGUMENTS = 150
"""The characters of the arguments of a call."""

_MAX_FRAMES = 12
"""The last lines of a traceback that are shown."""

LEGEND = "(elements (tokens), then the components with data on each tier; [n]: n locks)"
"""What stands in the line of a node."""

MARK = "✗"
"""Marks the last call: the check that failed came right after it, or it raised."""

_EXPECTED = re.compile(r"(?:(?P<at>.+?): )?expected (?P<expected>.+?), got (?P<got>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextPart:
    """Some lines of the text, with their title."""

    title: str
    lines: tuple[str, ...]


def failure_parts(failure: Execution, clauses: Mapping[str, Clause]) -> Iterator[TextPart]:
    """The parts of the text of a failure. No line is wider than WIDTH, and the number of lines is bounded."""
    evidence = failure.evidence
    sentences = [line for one in failure.causes if one in clauses for line in wrap(clauses[one].sentence, WIDTH)]
    yield TextPart(", ".join(failure.causes), (*sentences, *_message(failure, clauses)))
    if evidence.steps:
        shown = evidence.steps[-MAX_STEPS:]
        yield TextPart(f"the last {counted(len(shown), 'call')}", tuple(_steps(shown, evidence.steps)))
    for title, tree in trees(evidence):
        yield TextPart(title, (*([LEGEND] if tree.startswith("root") else []), *_tree(tree)))


def trees(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The trees, or blocks, that were taken, each with its title. Two equal ones are shown once."""
    kind = "tree" if (evidence.before or evidence.after).startswith("root") else "cache"
    if evidence.before and evidence.before == evidence.after:
        yield f"the {kind}, the same before and after the last call", evidence.after
        return
    for when, tree in (("before", evidence.before), ("after", evidence.after)):
        if tree:
            yield f"the {kind} {when} the last call", tree


def frames_part(failure: Execution) -> Iterator[TextPart]:
    """The last lines of the traceback of the adapter, where there is one; pytest shows it without this."""
    lines = legible(failure.evidence.traceback).splitlines()
    if lines:
        shown = [line for long in lines[-_MAX_FRAMES:] for line in _fitted(long, "    ")]
        yield TextPart("where the adapter raised", tuple(shown))


def message_parts(failure: Execution, clauses: Mapping[str, Clause]) -> Mapping[str, str]:
    """Where it was, what was expected and what came, by `at`, `expected` and `got`; empty if the message is another."""
    found = _EXPECTED.fullmatch(_message_text(failure, clauses))
    return {name: part for name, part in found.groupdict().items() if part} if found else {}


def _message(failure: Execution, clauses: Mapping[str, Clause]) -> Iterator[str]:
    """The parts of the message; else its first line."""
    for name, part in (message_parts(failure, clauses) or {"": _message_text(failure, clauses)}).items():
        lines = [line for one in part.splitlines() for line in _fitted(one, "  ")]
        yield from (f"{name}: {line}" if name and not number else line for number, line in enumerate(lines))


def _message_text(failure: Execution, clauses: Mapping[str, Clause]) -> str:
    """What the message says of a broken clause; of an error, its first line."""
    message = legible(failure.reason)
    broken = [cause for cause in failure.causes if cause in clauses]
    named = [part for clause in broken if (part := message.partition(f"{clause}: ")[2])]
    text, _, rest = (named[0] if named else first_line(message)).partition("\n")
    # What follows a colon belongs to it, such as the lines in which two ranks differ.
    more = rest.split("\n\n")[0].splitlines()[:_MAX_LINES] if text.endswith(":") else []
    return "\n".join([text, *more])


def _steps(shown: Sequence[Step], recorded: Sequence[Step]) -> Iterator[str]:
    """A call on a line, or on a few; the last one is marked."""
    if left_out := len(recorded) - len(shown):
        yield f"  … {counted(left_out, 'earlier call')} are left out"
    for number, step in enumerate(shown, start=1):
        sign = MARK if number == len(shown) else " "
        # However long they are, the answer is seen too.
        arguments = shorten(step.arguments, _MAX_ARGUMENTS, placeholder=" …")
        yield from _fitted(f"{sign} {step.verb}({arguments}) = {step.answer}", " " * 6)


def _tree(tree: str) -> Iterator[str]:
    lines = tree.splitlines()
    for line in lines[:MAX_NODES]:
        yield from _fitted(line, " " * 6)
    if len(lines) > MAX_NODES:
        yield f"… {counted(len(lines) - MAX_NODES, 'more line')}"


def _fitted(line: str, indent: str) -> Iterator[str]:
    """The line, in as many as it needs to fit, up to _MAX_LINES; the lines after the first are indented."""
    text = legible(line)
    yield from (
        [text]
        if len(text) <= WIDTH
        else wrap(text, WIDTH - 12, subsequent_indent=indent, max_lines=_MAX_LINES, placeholder=" …")
    )
