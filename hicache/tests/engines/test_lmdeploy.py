"""The adapter of lmdeploy's prefix cache, with and without lmdeploy, and the script that shows its defect."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hicache.engines import lmdeploy
from hicache.engines.imports import installed_release
from hicache.errors import ConfigurationError
from hicache.testing.configurations import standard_configurations
from hicache.testing.load import load_adapter

ADAPTER = "hicache.engines.lmdeploy:Lmdeploy0180"
SCRIPT = Path(__file__).parents[3] / "docs" / "reproductions" / "lmdeploy_order_within_a_second.py"
IS_INSTALLED = installed_release("lmdeploy") == lmdeploy.RELEASE
ENVIRONMENT = f"lmdeploy-{lmdeploy.RELEASE}"
NEEDS_LMDEPLOY = pytest.mark.skipif(not IS_INSTALLED, reason=f"not installed: `tox -e {ENVIRONMENT}` installs it")


@pytest.mark.skipif(IS_INSTALLED, reason="lmdeploy is installed")
def test_without_lmdeploy_the_adapter_is_named_and_not_opened() -> None:
    adapter = load_adapter(ADAPTER)
    with pytest.raises(ImportError, match=r"drives lmdeploy 0\.18\.0, installed is None"):
        adapter(lmdeploy.CONFIGURATIONS[0])


def test_a_configuration_without_a_geometry_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="with a geometry"):
        lmdeploy.Lmdeploy0180(standard_configurations(frozenset())[0])


@NEEDS_LMDEPLOY
def test_uses_within_one_second_have_no_order() -> None:
    lmdeploy.prepare_lmdeploy()
    with pytest.raises(AssertionError, match="access_time` has whole seconds"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
