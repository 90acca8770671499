"""The random workload on processes that torchrun has started, as on several GPUs or hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause

from .rank_actions import STORAGE_NEEDS


@clause("RANK-1", "RANK-2", needs=(*STORAGE_NEEDS, Capability.REQUESTS))
def test_a_workload_on_the_processes_of_torchrun(pytestconfig: pytest.Config) -> None:
    assert __package__ is not None, "the suite is a package"
    adapter, top = pytestconfig.getoption("--adapter"), Path(__file__).parents[__package__.count(".") + 1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    workload = ["-m", __package__, "--adapter", adapter, "--rounds", "5"]
    ended = subprocess.run([*torchrun, *workload], cwd=top, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, f"RANK-1: expected two ranks of torchrun to hold one tree, got:\n{ended.stderr}"
    assert "tp2 by gloo: one tree after each of 5 rounds" in ended.stdout, (
        f"expected the summary line, got {ended.stdout}"
    )
