"""The adapter of mlx-lm's prompt cache, with and without mlx-lm, and the script that shows its defects."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hicache.engines import mlx_lm
from hicache.engines.imports import installed_release
from hicache.errors import ConfigurationError
from hicache.testing.configurations import standard_configurations
from hicache.testing.load import load_adapter

ADAPTER = "hicache.engines.mlx_lm:MlxLm0322"
SCRIPT = Path(__file__).parents[3] / "docs" / "reproductions" / "mlx_lm_prompt_cache.py"
IS_INSTALLED = installed_release("mlx-lm") == mlx_lm.RELEASE
NEEDS_MLX_LM = pytest.mark.skipif(
    not IS_INSTALLED, reason=f"not installed: `tox -e mlx-lm-{mlx_lm.RELEASE}` installs it"
)


@pytest.mark.skipif(IS_INSTALLED, reason="mlx-lm is installed")
def test_without_mlx_lm_the_adapter_is_named_and_not_opened() -> None:
    adapter = load_adapter(ADAPTER)
    with pytest.raises(ImportError, match=r"drives mlx-lm 0\.32\.2, installed is None"):
        adapter(mlx_lm.CONFIGURATIONS[0])


def test_a_configuration_without_chunks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="chunks of one token"):
        mlx_lm.MlxLm0322(standard_configurations(frozenset())[0])


@NEEDS_MLX_LM
def test_the_defects_that_no_suite_sees_are_still_there() -> None:
    mlx_lm.prepare_mlx_lm()
    script = runpy.run_path(str(SCRIPT))
    evicted, (long, cut) = script["evicted_after_a_hit"](), script["bytes_of_a_cut_prompt"]()
    assert (evicted, cut) == ("the one that hit", long), (
        f"expected both defects, got {evicted} and {cut} of {long} bytes"
    )
