"""An engine and caches on several hosts, which are network namespaces here, while one host is cut off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hicache.tests.engines.hosts.__main__ import NOT_PERMITTED

LIMIT_S = 300


@pytest.mark.parametrize("engine", ["redis", "hf3fs"])
def test_a_host_that_was_cut_off_hits_again(engine: str) -> None:
    command = [sys.executable, "-m", "hicache.tests.engines.hosts", "--engine", engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode == NOT_PERMITTED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"expected code 0, got {done.returncode}:\n{done.stdout}\n{done.stderr}"
    assert "cut off" in done.stdout, f"expected a table of the hosts, got:\n{done.stdout}"
