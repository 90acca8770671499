"""The base of all commands: options are checked first, and wrong use prints one line on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import pairwise
from math import isnan
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from hicache.errors import ConfigurationError, TraceError
from hicache.storage.secrets import redacted
from hicache.testing.adapter import CacheAdapter
from hicache.testing.load import load_adapter
from hicache.testing.report.legible import legible
from hicache.testing.report.targets import require_file, require_folder

REFERENCE = "hicache.testing.caches.reference:ReferenceAdapter"


CLICK_ERROR: type[Exception] = next(one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException")
"""The base of the errors of wrong use. Some versions of typer have a copy of click, and others use click itself."""

NOT_ONE_OF = re.compile(r"'([^']*)' is not one of (.*)")


class OneLineGroup(typer.core.TyperGroup):
    """The commands. Wrong use is one line on stderr, which names the option and the value, and exit code 2."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, as the method of the base class does."""
        if not extra.get("standalone_mode", True):
            return super().main(*args, **extra)
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except (ConfigurationError, TraceError) as error:
            end_with(2, f"hicache: {type(error).__name__}: {error}")
        except CLICK_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                super().main(*args, **extra)
            context = getattr(error, "ctx", None)
            words = args[0] if args else extra.get("args")
            told = _message(error, sys.argv[1:] if words is None else words)
            end_with(2, f"{context.command_path if context else 'hicache'}: {told}")
        sys.exit(code if isinstance(code, int) else 0)


def _message(error: Any, words: Sequence[str]) -> str:
    """The message of an error of click, with the value, and with the nearest of the values that an option takes."""
    text = str(error.format_message()).rstrip(".")
    found = NOT_ONE_OF.search(text)
    if found is not None:
        return text + nearest(found[1], re.findall(r"'([^']*)'", found[2]))
    names = getattr(getattr(error, "param", None), "opts", ())
    given = [after for word, after in pairwise(words) if word in names]
    given += [word.partition("=")[2] for word in words if word.partition("=")[0] in names and "=" in word]
    return text if not given or any(value in text for value in given) else f"{text}, got {', '.join(given)}"


def end_with(code: int, reason: str) -> NoReturn:
    """Print the reason in one line on stderr, and exit with the code."""
    say(Console(stderr=True), " ".join(legible(reason).split()), style="red")
    sys.exit(code)


def nearest(name: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name: the known name that it may have meant, or nothing."""
    return "".join(f"; did you mean {one}?" for one in get_close_matches(name, known, n=1))


@contextmanager
def option(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Report errors about the value of an option as usage errors. `errors`: types beside ConfigurationError."""
    expected: tuple[type[Exception], ...] = (ConfigurationError, *errors)
    try:
        yield
    except expected as error:
        raise typer.BadParameter(str(error), param_hint=name) from error


def number(value: float | None) -> float | None:
    """The callback of float options. Usage error for a NaN, which is outside every range."""
    if value is not None and isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


def known_names(name: str, noun: str, values: Sequence[str], known: Collection[str]) -> None:
    """Usage error if the option has a value that is not known. `noun`: what it names."""
    for value in values:
        if value not in known:
            reason = f"unknown {noun} {value}; known: {', '.join(known)}{nearest(value, known)}"
            raise typer.BadParameter(reason, param_hint=name)


def writable_folder(name: str, folder: Path, files: Sequence[str] = ()) -> None:
    """Make the folder of an option. Usage error if no file can be written there, or a folder is in a file's place."""
    with option(name):
        require_folder(folder, files)


def writable_file(name: str, file: Path | None) -> None:
    """Make the folder of the file of an option. Usage error if the file cannot be written."""
    with option(name):
        if file is not None:
            require_file(file)


def adapter_class(path: str) -> type[CacheAdapter]:
    """Import the class `package.module:Class`, also from the current folder. Usage error if this fails."""
    include_this_folder()
    try:
        return load_adapter(path)
    except (ImportError, ValueError) as error:
        reason = str(error) if path in str(error) else f"{path}: {error}"
        raise typer.BadParameter(reason, param_hint="--adapter") from error
    except (Exception, SystemExit) as error:
        # The import runs code of the user.
        reason = f"{path}: the import raised {type(error).__name__}: {error}"
        raise typer.BadParameter(reason, param_hint="--adapter") from error


def include_this_folder() -> None:
    """Let modules be imported from the current folder, after all others: a file there must not hide a library."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print the text verbatim, without secrets: no markup, no emoji, no line break inside a path or a command."""
    console.print(redacted(text), style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


UNLIMITED = 1 << 16
"""Columns of a terminal that cuts nothing."""


def say_table(console: Console, table: Table) -> None:
    """Print a table with every cell whole. Its lines may be longer than those of a terminal, which then wraps them."""
    table.width = Measurement.get(console, console.options.update(max_width=UNLIMITED), table).maximum
    console.print(table, crop=False)
