"""The meshes that scenarios run on."""

from __future__ import annotations

import pytest

from hicache.testing.ranks.world import Mesh

TP1 = Mesh(tp_size=1, cp_size=1, pp_size=1)
TP2 = Mesh(tp_size=2, cp_size=1, pp_size=1)
TP4 = Mesh(tp_size=4, cp_size=1, pp_size=1)
CP2_TP2 = Mesh(tp_size=2, cp_size=2, pp_size=1)
PP2_TP2 = Mesh(tp_size=2, cp_size=1, pp_size=2)

ALL_MESHES = (TP2, TP4, CP2_TP2, PP2_TP2)
"""The meshes of several ranks. TP1 is for machines with one GPU."""


def on_meshes(*meshes: Mesh) -> pytest.MarkDecorator:
    """Run a test on each of these meshes; it takes `launch`."""
    return pytest.mark.parametrize("mesh", meshes, ids=[mesh.name for mesh in meshes])
