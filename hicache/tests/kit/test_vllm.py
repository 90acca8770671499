"""The adapters of vLLM's caches, with and without vLLM, and the scripts that show its defects without this package."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from hicache.testing.adapter import Capability, load_adapter
from hicache.testing.adapters import vllm
from hicache.testing.adapters.vllm_import import prepare_vllm, vllm_version

ADAPTER = "hicache.testing.adapters.vllm:Vllm0330"
ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "docs" / "reproductions"

NEEDS_VLLM = pytest.mark.skipif(
    vllm_version() != vllm.Vllm0330.version,
    reason=f"vllm {vllm.Vllm0330.version} is not installed: `tox -e vllm-{vllm.Vllm0330.version}` installs it",
)


def test_an_adapter_can_be_named_where_vllm_is_not_installed() -> None:
    adapter = load_adapter(ADAPTER)
    assert Capability.REQUESTS in adapter.capabilities, f"expected REQUESTS, got {adapter.capabilities}"
    assert adapter.profile == "blocks", f"expected the profile blocks, got {adapter.profile}"


def test_an_adapter_refuses_another_release() -> None:
    if vllm_version() == vllm.Vllm0330.version:
        pytest.skip(f"vllm {vllm.Vllm0330.version}, which the adapter drives, is the one that is installed")
    with pytest.raises(ImportError, match="vllm"):
        load_adapter(ADAPTER)(vllm.CONFIGURATIONS[0])
    assert "vllm" not in sys.modules, "expected no package of vLLM after the refusal"


def test_the_configurations_have_names_of_their_own() -> None:
    names = [config.name for config in vllm.CONFIGURATIONS]
    assert len(set(names)) == len(names), f"expected different names, got {names}"


@NEEDS_VLLM
def test_the_manager_is_vllms_own_and_no_stub() -> None:
    prepare_vllm()
    adapter = vllm.Vllm0330(vllm.CONFIGURATIONS[0])
    for module in ("v1.core.kv_cache_manager", "v1.core.block_pool", "v1.request", "utils.hashing"):
        file = sys.modules[f"vllm.{module}"].__file__
        assert file is not None, f"vllm.{module} is a stub"
        assert Path(file).is_file(), f"expected vllm.{module} to be read from a file, got {file}"
    assert adapter.sizes()["full"].free == vllm.CONFIGURATIONS[0].capacity_tokens["full"], "expected an empty cache"


@NEEDS_VLLM
def test_the_script_shows_a_block_that_is_removed_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    prepare_vllm()
    runpy.run_path(str(SCRIPTS / "vllm_removed_event.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    stored, again, removed = (line.split()[1] for line in lines if line.startswith("  ") and "," not in line)
    assert stored == again == removed, f"expected one hash, stored twice and removed once, got {lines}"
    assert lines[-1] == "a third request finds 4 of the tokens [1, 2, 3, 4]", f"got {lines[-1]!r}"
