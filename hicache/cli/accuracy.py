"""`hicache accuracy`: a model's tasks in passes, each answered from another tier, and one page of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hicache.cli.adapter_class import REFERENCE, adapter_class
from hicache.cli.suite_stage import suite_folder
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.ranks.outcome import RanksFailedError
from hicache.testing.requirements import unsupported_transformers

DTYPES = ("float32", "bfloat16")
NEEDED = ("transformers", "lm_eval", "datasets", "safetensors")


def accuracy_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    model: Annotated[str, typer.Option(help="hybrid or window, which ship, or a name of the Hugging Face Hub.")],
    tasks: Annotated[str, typer.Option(help="Ours or lm-eval's, with commas; of a model that ships, all.")] = "",
    adapter: Annotated[str, typer.Option(help="The cache, as package.module:Class.")] = REFERENCE,
    documents: Annotated[int | None, typer.Option(min=1, help="Of each task, at most.")] = None,
    dtype: Annotated[str, typer.Option(help=f"Of the weights: {' or '.join(DTYPES)}.")] = "float32",
    device: Annotated[str, typer.Option(help="As torch names it.")] = "cpu",
    page_size: Annotated[int, typer.Option(help="Tokens per page.")] = 16,
    chunk: Annotated[int, typer.Option(help="Tokens that are computed at once, in whole pages.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens that each tier has room for, in whole pages.")] = 1 << 15,
    states: Annotated[int, typer.Option(help="Recurrent states that each tier has room for.")] = 1024,
    ranks: Annotated[int, typer.Option(min=1, help="In the end also on so many, one process each.")] = 1,
    controls: Annotated[
        bool, typer.Option("--controls", help="In the end lose one component after the other: the answers must tell.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Ask by the chat template.")] = False,
    report: Annotated[Path, typer.Option(file_okay=False, help="Where accuracy.html goes.")] = Path("reports"),
) -> None:
    """Ask a model with its cache cold, and from device, host and storage; hold the answers to the first ones.

    With several ranks each runs the whole model, and they agree on what they cache. Ends with 1 when anything differs
    by more than the gates allow, and with 2 when the model cannot be asked.
    """
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r} is neither of {', '.join(DTYPES)}", param_hint="--dtype")
    cache = adapter_class(adapter)
    if ranks > 1 and Capability.RANKS not in cache.capabilities:
        raise typer.BadParameter(f"{adapter} does not declare {Capability.RANKS.name}", param_hint="--ranks")
    if missing := missing_libraries():
        raise typer.BadParameter(f"{', '.join(missing)}: not installed; pip install 'hicache[accuracy]'")
    if unsupported := unsupported_transformers():
        raise typer.BadParameter(unsupported)
    measuring = _suite("evaluation.measure")
    asked = tasks.split(",") if tasks else measuring.own_tasks(model)
    if not asked:
        raise typer.BadParameter(f"say what to ask {model}", param_hint="--tasks")
    told: dict[str, Any] = {"model": model, "tasks": asked, "documents": documents, "dtype": dtype, "device": device}
    console = Console()
    try:
        with TemporaryDirectory() as folder:
            told |= {"sizes": (page_size, chunk, tokens, states), "chats": chat, "ranks": ranks, "folder": Path(folder)}
            told |= {"controls": controls}
            judged = list(_told(measuring.measure(adapter, **told), console))
    except (OSError, ConfigurationError, _suite("engine.refusal").RefusedFamily, RanksFailedError) as error:
        Console(stderr=True).print(f"{type(error).__name__}: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    settings = {"adapter": adapter, "dtype": dtype, "device": device, "page": page_size, "chunk": chunk}
    _tell(judged, f"{model}: {', '.join(asked)}", settings, report, console)


def missing_libraries() -> list[str]:
    """What would have to be installed for a model to be asked."""
    return [name for name in NEEDED if not find_spec(name)]


def _suite(name: str) -> Any:
    """A module of the accuracy suite, which in a clone lies beside this package and else inside it."""
    folder = suite_folder("accuracy")
    if folder.parent.name == "suites":
        return import_module(f"hicache.suites.accuracy.{name}")
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    return import_module(f"accuracy.{name}")


def _told(judged: Iterable[Any], console: Console) -> Iterable[Any]:
    """Each pass, said as it ends."""
    for one in judged:
        console.print(f"{one.name}: {one.seconds:.1f} s", highlight=False)
        yield one


def _tell(judged: Sequence[Any], title: str, settings: dict[str, Any], report: Path, console: Console) -> None:
    """Write the page and show the passes. Ends with 1 when one of them differs."""
    report.mkdir(parents=True, exist_ok=True)
    page = report / "accuracy.html"
    words = {name: str(value) for name, value in settings.items()}
    page.write_text(_suite("evaluation.page").render_page(title, words, judged), encoding="utf-8")
    table = Table("pass", "scores", "device", "host", "storage", "waiting", "most nats")
    for one in judged:
        tiers = (f"{count:,}" for count in (one.hits.device, one.hits.host, one.hits.storage))
        waiting = "" if one.wait_share is None else f"{one.wait_share:.0%}"
        style = "red" if one.problems else None
        table.add_row(one.name, _scores(one, judged[0]), *tiers, waiting, f"{one.most_nats:.1e}", style=style)
    console.print(table)
    for problem in (problem for one in judged for problem in one.problems):
        console.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
    if any(one.problems for one in judged):
        raise typer.Exit(1)


def _scores(one: Any, first: Any) -> str:
    """The scores of a pass; of a later one, those that are not the first one's."""
    told = [name for name, score in one.scores.items() if one is first or score != first.scores[name]]
    return "\n".join(f"{name} {one.scores[name]:.4f}" for name in told) or "the same"
