"""Leaves out the tests of this folder that would prove nothing here: where the kit or torch is installed."""

from __future__ import annotations

from importlib.util import find_spec

from hicache.testing.requirements import missing_libraries

if missing_libraries():
    collect_ignore = ["test_without_torch.py"]
else:
    collect_ignore = ["test_bare.py"] if find_spec("torch") is None else ["test_bare.py", "test_without_torch.py"]
