"""`hicache init-adapter`: write the skeleton of an adapter, which runs unchanged."""

from __future__ import annotations

import keyword
import re
import shlex
from enum import Enum
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.command import include_this_folder, say

CLASS = "MyAdapter"
"""The class of a template, which gets the name of `--name`."""

STAND_IN = {"verbs": "PrefixDictionary", "requests": "BlockCache"}
"""By door, the cache that the template runs over."""

OPEN_IT = "YOUR CACHE: open it here"
"""The first words of the comment in a template where its cache is opened."""


class Door(str, Enum):
    """The doors of an adapter. Each has a template of this name in hicache/testing/templates."""

    VERBS = "verbs"
    REQUESTS = "requests"


def init_adapter_command(
    path: Annotated[Path, typer.Argument(dir_okay=False, help="File to write, such as my_adapter.py.")],
    door: Annotated[
        Door,
        typer.Option(help="verbs: the tests match, insert, lock and evict. requests: they admit, extend and finish."),
    ] = Door.VERBS,
    name: Annotated[str, typer.Option(help="Name of the class.")] = CLASS,
    cache: Annotated[
        str | None, typer.Option(help="Class of your cache, as package.module:Class; the file imports it.")
    ] = None,
) -> None:
    """Write a skeleton of an adapter: the one class that you write to verify a cache.

    The skeleton is a complete adapter over a small cache that stands in for yours, and passes the suites unchanged.
    Comments mark where calls to your cache go, and list which capability to declare next. The option --cache adds
    the import of your cache.

    Exit code:

    - 0: the file was written.
    - 2: it exists, a name cannot be used, or the cache cannot be imported. Nothing was written.
    """
    _require_free(path)
    template = files("hicache.testing.templates").joinpath(f"{door.value}.py").read_text(encoding="utf-8")
    _require_name(name, template)
    text = re.sub(rf"\b{CLASS}\b", name, template)
    if cache is not None:
        text = _with_import(text, STAND_IN[door.value], *_imported(cache, text))
    try:
        # Mode x: a file that was made since is not overwritten.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise typer.BadParameter(f"cannot write it: {error}", param_hint="PATH") from error
    _show_next(path, name)


def _require_free(path: Path) -> None:
    """Usage error unless the file can be written there, and be imported afterwards."""
    problem = None
    if path.exists():
        problem = "it exists, and is not overwritten"
    elif path.suffix != ".py" or not _is_name(path.stem):
        problem = "expected the file of a module, such as my_adapter.py"
    elif not path.absolute().parent.is_dir():
        problem = f"there is no folder {path.parent}"
    elif find_spec(path.stem) is not None:
        problem = f"there is another module {path.stem}, which Python would import instead"
    if problem is not None:
        raise typer.BadParameter(f"{path}: {problem}", param_hint="PATH")


def _require_name(name: str, template: str) -> None:
    """Usage error unless the class can have this name."""
    if not _is_name(name):
        raise typer.BadParameter(f"{name!r} is not a valid class name", param_hint="--name")
    if name != CLASS and re.search(rf"\b{name}\b", template):
        raise typer.BadParameter(f"the skeleton uses {name} for something else", param_hint="--name")


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _imported(cache: str, text: str) -> tuple[str, str]:
    """The module and the class of a cache, after an import of it. Usage error if this fails."""
    module, _, name = cache.partition(":")
    problem = None
    if not all(map(_is_name, [*module.split("."), name])):
        problem = f"{cache!r} is not of the form package.module:Class"
    elif re.search(rf"\b{name}\b", text):
        problem = f"{cache}: the skeleton uses {name} for something else"
    else:
        include_this_folder()
        try:
            if not hasattr(import_module(module), name):
                problem = f"{module} has no {name}"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the import runs code of the user
            problem = f"{cache}: {error if isinstance(error, ImportError) else repr(error)}"
    if problem is not None:
        raise typer.BadParameter(problem, param_hint="--cache")
    return module, name


def _with_import(text: str, stand_in: str, module: str, name: str) -> str:
    """The skeleton with an import of the cache, and with its name where it is to be opened."""
    end = text.index("\n\n\nclass ")
    line = f"\n\nfrom {module} import {name}  # noqa: F401 - open it in __init__, in the place of {stand_in}"
    return (text[:end] + line + text[end:]).replace(OPEN_IT, f"YOUR CACHE: open {name} here")


def _show_next(path: Path, name: str) -> None:
    """Print the commands that run the skeleton from its folder."""
    console, adapter = Console(emoji=False), f"{path.stem}:{name}"
    say(console, f"wrote {path}. It runs unchanged:\n")
    if path.absolute().parent != Path.cwd():
        say(console, f"  cd {shlex.quote(str(path.parent))}")
    say(console, f"  python -m pytest --pyargs hicache.suites.conformance --hicache-adapter {adapter} -q")
    say(console, f"  hicache verify --adapter {adapter} --require nothing\n")
    say(console, "Without `--require nothing` it ends with 3 until the adapter shows enough for the level `device`.")
    say(console, "Then replace the lines after each comment YOUR CACHE, and see DECLARE NEXT at the end of the file.")
