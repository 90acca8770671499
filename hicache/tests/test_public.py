"""What a user meets first: the public names, the examples, the README and the guide."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import hicache
from hicache.cli.app import app
from hicache.moved import MOVED
from hicache.tests.docs.pages import read_blocks

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
"""Until a program that hangs is ended: far beyond what any of them takes."""


def run_python(folder: Path, *arguments: str) -> str:
    """Run a Python of this environment in a folder; what it printed. Fails with the child's messages when it fails."""
    # Wide enough that no drawing is wrapped.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        check=False,
        text=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# The names that `import hicache` shows, and what can be imported where torch is not.

WITHOUT_TORCH = (
    *("hicache", "hicache.config", "hicache.config_mapping", "hicache.keys", "hicache.types", "hicache.errors"),
    "hicache.clock",
)
PACKAGES_WITHOUT_TORCH = ("hicache.tree", "hicache.components")


@pytest.mark.parametrize("name", hicache.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(hicache, name)
    if name == "__version__":
        return
    module = import_module(hicache._MODULE_OF[name])
    assert value is getattr(module, name), f"hicache.{name} is {value!r}, {module.__name__} has another"
    assert name in dir(hicache), f"dir(hicache) lacks {name}"


def members_of(value: Any) -> dict[str, Any]:
    """The public methods and properties of a class, by name; a function by its own."""
    if not inspect.isclass(value):
        return {value.__name__: value}
    own = {name: one for name, one in vars(value).items() if not name.startswith("_")}
    return {
        name: getattr(value, name)
        for name, one in own.items()
        if callable(getattr(value, name)) or type(one) is property
    }


@pytest.mark.parametrize("name", sorted({*hicache.__all__} - {"__version__"}))
def test_what_an_editor_shows_of_a_name_explains_it(name: str) -> None:
    value = getattr(hicache, name)
    documented = inspect.getdoc(value) or ""
    assert documented, f"hicache.{name} has no docstring"
    silent = [member for member, one in members_of(value).items() if not inspect.getdoc(one)]
    assert not silent, f"hicache.{name}: {silent} have no docstring"
    if is_dataclass(value):
        unexplained = [one.name for one in fields(value) if f"`{one.name}`" not in documented]
        assert not unexplained, f"hicache.{name}: its docstring does not explain {unexplained}"


def test_no_public_name_is_kept_back() -> None:
    lazy, listed = {*hicache._MODULE_OF, "__version__"}, set(hicache.__all__)
    assert lazy == listed, f"__all__ has {listed - lazy} too many, and lacks {lazy - listed}"


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'hicache' has no attribute 'open_cash'"):
        _ = hicache.open_cash  # type: ignore[attr-defined]


def test_importing_hicache_loads_no_library(tmp_path: Path) -> None:
    program = "import sys, hicache; print({'numpy', 'torch', 'xxhash', 'yaml'} & {*sys.modules})"
    printed = run_python(tmp_path, "-c", program)
    assert printed == "set()\n", f"import hicache loads {printed}"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_a_module_is_imported_without_torch(module: str, tmp_path: Path) -> None:
    printed = run_python(tmp_path, "-c", f"import sys, {module}; print('torch' in sys.modules)")
    assert printed == "False\n", f"import {module} loads torch"


@pytest.mark.parametrize("package", PACKAGES_WITHOUT_TORCH)
def test_every_module_of_a_package_is_imported_without_torch(package: str, tmp_path: Path) -> None:
    program = (
        f"import sys, pkgutil, importlib, {package} as package\n"
        "names = [one.name for one in pkgutil.walk_packages(package.__path__, package.__name__ + '.')]\n"
        "print(len(names) > 2, [name for name in names if importlib.import_module(name) and 'torch' in sys.modules])\n"
    )
    printed = run_python(tmp_path, "-c", program)
    assert printed == "True []\n", f"expected modules that load no torch, got {printed}"


def test_configurations_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, hicache\n"
        "shape = hicache.ModelShape.hybrid(full_layers=2, kv_heads=2, head_dim=8, dtype='bfloat16')\n"
        "host = hicache.HostConfig({'full': 64})\n"
        "storage = hicache.StorageConfig('file', model='org/name@revision', options={'root': 'pages'})\n"
        "hicache.CacheConfig({'full': 64}, page_size=16, model=shape, host=host, storage=storage)\n"
        "print('torch' in sys.modules)\n"
    )
    printed = run_python(tmp_path, "-c", program)
    assert printed == "False\n", f"a configuration loads torch: {printed}"


# Each example runs in an empty folder, and prints what it promises.

EXAMPLES = {
    "smallest.py": [
        "1100 tokens: 0 from the cache, 1100 to compute",
        "1200 tokens: 992 from the cache, 208 to compute",
    ],
    "hybrid_three_tiers.py": [
        "device: the same bytes: True",
        "evicted from the device: {'full': 512, 'swa': 512, 'mamba': 1}",
        "host: the same bytes: True",
        "tokens prefetched from storage: 512",
        "storage: the same bytes: True",
    ],
    "own_tensors.py": [
        "evicted from the device: {'full': 160}",
        "loaded back: 160 tokens",
        "the same bytes in the engine's tensor: True",
    ],
}
TESTS = "test_my_cache.py"
RANKS = "ranks_torchrun.py"
JOB = "test_hicache.py"
"""For the repository of an engine; tests of docs run it."""

MAX_LINES = 79


def _expect(printed: str, expected: list[str]) -> None:
    missing = [line for line in expected if line not in printed.splitlines()]
    assert not missing, f"expected {missing}, the example printed:\n{printed}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    _expect(run_python(tmp_path, "-W", "error", str(ROOT / "examples" / name)), EXAMPLES[name])
    assert not list(tmp_path.iterdir()), f"{name} left {list(tmp_path.iterdir())}"


def test_the_example_of_ranks_runs(tmp_path: Path) -> None:
    # --standalone: any free port, so that runs at the same time do not meet.
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    printed = run_python(tmp_path, *torchrun, str(ROOT / "examples" / RANKS))
    _expect(printed, ["loaded back: 160 tokens, host capacity: 2048 tokens", "2 ranks agree: True"])


def test_every_example_is_run_short_and_says_how_to_run_it() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert found.keys() == {*EXAMPLES, RANKS, TESTS, JOB}, (
        f"examples/ has {sorted(found)}, tests run {sorted([*EXAMPLES, RANKS, TESTS, JOB])}"
    )
    del found[JOB]
    for name, text in found.items():
        lines = len(text.splitlines())
        assert lines <= MAX_LINES, f"{name} has {lines} lines, at most {MAX_LINES}"
        assert f"examples/{name}`." in text.partition('"""\n')[0], f"{name}: its docstring does not say how to run it"


ADAPTERS = (
    *("dictionary:DictionaryAdapter", "paged_dictionary:PagedDictionaryAdapter"),
    *("paged_dictionary:InspectedDictionaryAdapter", "reference:ReferenceAdapter", "reference:ModelledReference"),
    *("blocks:BlockCacheAdapter", "offload:OffloadCacheAdapter"),
)
"""The adapters of this package that need no engine."""


def test_an_example_of_tests_passes_for_each_adapter(tmp_path: Path) -> None:
    text = (ROOT / "examples" / TESTS).read_text(encoding="utf-8")
    for adapter in ADAPTERS:
        module, name = adapter.split(":")
        used = f"from hicache.testing.caches.{module} import {name} as DictionaryAdapter"
        mine = text.replace("from hicache.testing.caches.dictionary import DictionaryAdapter", used)
        (tmp_path / f"test_{name}.py").write_text(mine, encoding="utf-8")
    quiet = ("-p", "no:cacheprovider", "-W", "error", "-c", os.devnull, "--rootdir", str(tmp_path), "-rA", "-v")
    # The suites run the other clauses of the class on the same adapters.
    chosen = ("-k", "lock_on_the_root or an_empty_cache or not TestMyCache")
    printed = run_python(tmp_path, "-m", "pytest", *quiet, *chosen, str(tmp_path))
    for adapter in ADAPTERS:
        name = adapter.partition(":")[2]
        passed = {*re.findall(rf"^PASSED test_{name}\.py::(?:TestMyCache::)?(test_\w+)", printed, re.MULTILINE)}
        door = {"test_a_prompt_that_was_inserted_is_found", "test_an_empty_cache_hits_nothing"} & passed
        assert len(door) == 2 or "test_a_request_finds_what_an_earlier_one_computed" in passed, (
            f"{adapter}: expected the tests of a door to pass, got {passed}:\n{printed}"
        )


def test_an_example_of_tests_runs_the_clauses_of_its_class(tmp_path: Path) -> None:
    quiet = ("-p", "no:cacheprovider", "-W", "error", "-c", os.devnull, "--rootdir", str(ROOT / "examples"))
    printed = run_python(tmp_path, "-m", "pytest", *quiet, str(ROOT / "examples" / TESTS))
    assert "= 9 passed, " in printed, f"seven tests of clauses and two of its own run, got:\n{printed}"
    assert "hicache: 9 passed, 0 failed" in printed, f"both are counted, got:\n{printed}"


# The README and the guide: the quick start runs, the picture is what the command prints, commands and links exist.

GUIDE = ROOT / "docs" / "guide"
FIRST = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *sorted(GUIDE.glob("*.md"))))
COMMANDS = re.findall(r"^ *\$ hicache (.*?)(?: +#.*)?$", FIRST, re.MULTILINE)


def _block(language: str) -> str:
    """The first block of code in a language."""
    page = (GUIDE / "cache.md").read_text(encoding="utf-8")
    return next("\n".join(one.lines) for one in read_blocks(page, "cache.md") if one.language == language)


def test_the_quick_start_runs(tmp_path: Path) -> None:
    (tmp_path / "quick_start.py").write_text(_block("python"), encoding="utf-8")
    printed = run_python(tmp_path, "-W", "error", "quick_start.py")
    expected = "0 tokens are cached, 1000 are to be computed\n992 tokens are cached, 8 are to be computed\n"
    assert printed == expected, f"expected {expected!r}, the quick start printed {printed!r}"


def test_the_picture_is_what_the_command_prints(tmp_path: Path) -> None:
    program = "from hicache.cli.main import main; main()"
    printed = run_python(tmp_path, "-c", program, "explain", "--act", "5")
    lines = {line.strip() for line in printed.splitlines()}
    missing = [line for line in _block("").splitlines() if line.strip() not in lines]
    assert not missing, f"`hicache explain --act 5` does not print {missing}, it prints:\n{printed}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_its_options(command: str) -> None:
    words, found = command.split(), get_command(app)
    while isinstance(found, typer.core.TyperGroup) and words[0] in found.commands:
        found = found.commands[words.pop(0)]
    assert not isinstance(found, typer.core.TyperGroup), f"`hicache {command}`: {words[0]!r} is not a command"
    known = {option for parameter in found.params for option in parameter.opts}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    assert not unknown, f"`hicache {command}` has no option {unknown}; known: {sorted(known)}"


def test_commands_are_found() -> None:
    named = {command.split()[0] for command in COMMANDS}
    expected = {"verify", "verify-storage", "report", "replay", "accuracy"}
    assert named >= expected, f"expected commands {expected}, found {named}"


# Old names of modules.


def test_old_names_are_those_of_the_old_packages() -> None:
    # These are literals: a rename of the whole text would change the table too.
    old = {"hicache." + "integrations", "hicache.testing." + "adapters"}
    assert {name.rpartition(".")[0] for name in MOVED} == old, f"got {sorted(MOVED)}"


@pytest.mark.parametrize("old", [name for name in MOVED if find_spec(MOVED[name])])
def test_an_old_name_gives_the_module_and_warns(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module(old.rpartition(".")[0])
    monkeypatch.delitem(sys.modules, old, raising=False)
    new = import_module(MOVED[old])
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {MOVED[old]}; the old name will be removed in"):
        assert import_module(old) is new, f"{old} is not {MOVED[old]}"
