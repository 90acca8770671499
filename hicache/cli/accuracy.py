"""`hicache accuracy`: run the tasks of a model in passes, each with hits on another tier, and compare the answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hicache.cli.command import REFERENCE, adapter_class, end_with, known_names, say, say_table, writable_folder
from hicache.cli.progress_lines import progress_lines
from hicache.cli.stage import suite_folder
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.devices import missing_device
from hicache.testing.imports import without_collection
from hicache.testing.ranks.outcome import RanksFailedError
from hicache.testing.report.run import counted
from hicache.testing.requirements import unsupported_transformers

DTYPES = ("float32", "bfloat16")
LIBRARIES = ("torch", "transformers", "lm_eval", "datasets", "safetensors")

_Model = Annotated[
    str,
    typer.Option(help="A trained model of this package, such as hybrid, a folder, or a name of the Hugging Face Hub."),
]
_Tasks = Annotated[
    str,
    typer.Option(
        help="Task names of this package or of lm-eval, separated by commas. Default for a model of this package: all "
        "that it learned."
    ),
]
_IncludePath = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="Folder of task files, searched before those of lm-eval."),
]
_Tokens = Annotated[int, typer.Option(min=1, help="Capacity of each tier in tokens, a multiple of the page size.")]
_Ranks = Annotated[
    int, typer.Option(min=1, help="If above 1, also run passes on this number of ranks, with one process each.")
]
_Controls = Annotated[
    bool, typer.Option("--controls", help="At the end lose one component at a time, and check that the answers change.")
]
_BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Requests that one padded forward computes. Default: 8, and 1 with bfloat16. "
        "Always 1 for models with states, an indexer or compressors.",
    ),
]


def accuracy_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    model: _Model,
    tasks: _Tasks = "",
    include_path: _IncludePath = None,
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    documents: Annotated[int | None, typer.Option(min=1, help="Use only the first N documents of each task.")] = None,
    dtype: Annotated[str, typer.Option(help=f"Dtype of the weights: {' or '.join(DTYPES)}.")] = "float32",
    device: Annotated[str, typer.Option(help="Torch device, such as cpu or cuda.")] = "cpu",
    page_size: Annotated[int, typer.Option(min=1, help="Page size in tokens.")] = 16,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens per prefill chunk, a multiple of the page size.")] = 64,
    tokens: _Tokens = 1 << 15,
    states: Annotated[int, typer.Option(min=1, help="Capacity of each tier in recurrent states.")] = 1024,
    ranks: _Ranks = 1,
    controls: _Controls = False,
    batch_size: _BatchSize = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template of the model.")] = False,
    report: Annotated[Path, typer.Option(file_okay=False, help="Folder for accuracy.html.")] = Path("reports"),
) -> None:
    """Ask a model the same prompts with a cold cache and with a cache hit on each tier, and compare the answers.

    Scores, answers and log probabilities of each pass must agree with those of the first pass. With several ranks,
    every rank runs the whole model, and the ranks agree on what is cached.

    Exit code:
    - 0: every pass agrees with the first one.
    - 1: a pass differs by more than the gates allow, has too few hits, or does not notice the loss of a component; or
      no task had a hit in any pass, so that nothing was tested.
    - 2: the model, a task or the cache cannot be used.
    """
    _check_options(adapter, dtype, device, ranks)
    _require_whole_pages(page_size, {"--chunk": chunk, "--tokens": tokens})
    measuring = _suite("evaluation.trial")
    task_names = tasks.split(",") if tasks else measuring.own_tasks(model)
    if not task_names:
        raise _without_tasks(model)
    options: dict[str, Any] = {
        "model": model,
        "tasks": task_names,
        "include_path": include_path,
        "documents": documents,
        "dtype": dtype,
        "device": device,
    }
    options |= {"sizes": (page_size, chunk, tokens, states), "chats": chat, "ranks": ranks, "controls": controls}
    options["batch_size"] = batch_size
    writable_folder("--report", report, ["accuracy.html"])
    passes = _measure(adapter, options)
    settings = {"adapter": adapter, "dtype": dtype, "device": device, "page": page_size, "chunk": chunk}
    _report(passes, f"{model}: {', '.join(task_names)}", settings, report)


def _without_tasks(model: str) -> typer.BadParameter:
    """The usage error of a model without default tasks."""
    if Path(model).is_dir():
        return typer.BadParameter(f"{model} has no default tasks; name some", param_hint="--tasks")
    reason = f"{model} is neither a folder nor a trained model of this package; for a model of the Hub name --tasks"
    return typer.BadParameter(reason, param_hint="--model")


def _require_whole_pages(page_size: int, given: Mapping[str, int]) -> None:
    """Usage error for an option that the page size does not divide."""
    for name, tokens in given.items():
        if tokens % page_size:
            reason = f"{tokens} is not a multiple of {page_size}, the page size"
            raise typer.BadParameter(reason, param_hint=name)


def _check_options(adapter: str, dtype: str, device: str, ranks: int) -> None:
    """Usage error for an unknown dtype, device or adapter, undeclared ranks, or a missing library."""
    known_names("--dtype", "dtype", [dtype], DTYPES)
    if no_device := missing_device(device):
        raise typer.BadParameter(f"{device}: {no_device}", param_hint="--device")
    cache = adapter_class(adapter)
    if ranks > 1 and Capability.RANKS not in cache.capabilities:
        raise typer.BadParameter(f"{adapter} does not declare {Capability.RANKS.name}", param_hint="--ranks")
    if missing := missing_libraries():
        raise typer.BadParameter(f"not installed: {', '.join(missing)}; run pip install 'hicache[accuracy]'")
    if unsupported := unsupported_transformers():
        raise typer.BadParameter(unsupported)


def _measure(adapter: str, options: dict[str, Any]) -> list[Any]:
    """Run all passes, and print each when it has ended. Exits with 2 if the model or the cache cannot be used."""
    console = Console(emoji=False)
    passes: list[Any] = []
    try:
        # A pass has no bar, on a terminal either.
        with (
            TemporaryDirectory() as folder,
            progress_lines(lambda: f"{counted(len(passes), 'pass')} of the model ended", console),
        ):
            for one in _suite("evaluation.trial").measure(adapter, **options, folder=Path(folder)):
                console.print(f"{one.name}: {one.seconds:.1f} s", highlight=False)
                passes.append(one)
    except (OSError, ConfigurationError, _suite("engine.model_layout").RefusedFamily, RanksFailedError) as error:
        end_with(2, f"--model {options['model']} --tasks {','.join(options['tasks'])}: {type(error).__name__}: {error}")
    return passes


def missing_libraries() -> list[str]:
    """The missing libraries of this command."""
    return [name for name in LIBRARIES if not find_spec(name)]


def _suite(name: str) -> Any:
    """Import a module of the accuracy suite: beside this package in a clone, inside it if it is installed."""
    folder, package = suite_folder("accuracy"), "hicache.suites.accuracy"
    if folder.parent.name != "suites":
        package = "accuracy"
        if str(folder.parent) not in sys.path:
            sys.path.insert(0, str(folder.parent))
    with without_collection():
        return import_module(f"{package}.{name}")


def _report(passes: Sequence[Any], title: str, settings: dict[str, Any], report: Path) -> None:
    """Write the page and show the passes. Exits with 1 if one of them has a problem, or if no task was tested."""
    console = Console(emoji=False)
    report.mkdir(parents=True, exist_ok=True)
    page = report / "accuracy.html"
    words = {name: str(value) for name, value in settings.items()}
    page.write_text(_suite("evaluation.page").render_page(title, words, passes), encoding="utf-8")
    say_table(console, _pass_table(passes))
    say_table(console, _task_table(passes))
    for problem in (problem for one in passes for problem in one.problems):
        say(console, problem, style="red")
    untested = _suite("evaluation.comparison").untested_tasks(passes)
    for name in untested:
        say(console, f"{name}: nothing was tested: its prompts had no hit in any pass", style="yellow")
    is_vacuous = len(untested) == len(passes[0].parts)
    if is_vacuous:
        say(console, "no task was tested: try a smaller --page-size", style="red")
    say(console, f"report: {page}")
    if is_vacuous or any(one.problems for one in passes):
        raise typer.Exit(1)


def _pass_table(passes: Sequence[Any]) -> Table:
    """A row for each pass."""
    table = Table("pass", "scores", *_FIGURES, "wait share")
    for one in passes:
        scores = "" if one is passes[0] else "same" if one.scores == passes[0].scores else "differ"
        wait = "" if one.wait_share is None else f"{one.wait_share:.0%}"
        table.add_row(one.name, scores, *_figures(one), wait, style="red" if one.problems else None)
    return table


def _task_table(passes: Sequence[Any]) -> Table:
    """A row for each task or group in each pass."""
    table = Table("task", "pass", "scores", *_FIGURES)
    for name in passes[0].parts:
        for one in passes:
            part = one.parts[name]
            table.add_row(name if one is passes[0] else "", one.name, _scores(name, part), *_figures(part))
        table.add_section()
    return table


_FIGURES = ("device", "host", "storage", "forwards", "tokens", "padding", "mean nats", "max nats", "seconds")


def _figures(one: Any) -> tuple[str, ...]:
    """Hit tokens by tier, what the forwards computed, the divergence from the first pass, and the time."""
    hits, forwards = one.hits, one.forwards
    counts = (hits.device, hits.host, hits.storage, forwards.forwards, forwards.tokens, forwards.padding)
    return (*(f"{count:,}" for count in counts), f"{one.mean_nats:.1e}", f"{one.max_nats:.1e}", f"{one.seconds:.2f}")


def _scores(name: str, part: Any) -> str:
    """The scores of a task, each with its metric."""
    return "\n".join(f"{score.removeprefix(f'{name} ')} {value:.4f}" for score, value in part.scores.items())
