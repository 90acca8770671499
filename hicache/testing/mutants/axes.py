"""Reductions that leave out an axis of the mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.testing.mutants.other_agreement import OtherAgreement


class _EachStage(Agreement):
    def __init__(self, groups: Mapping[str, Group]) -> None:
        super().__init__(groups)
        self._of_stage = Agreement({axis: group for axis, group in groups.items() if axis != "pp"})

    def acknowledged(self, started: int, outcomes: Sequence[int]) -> Sequence[int]:
        return self._of_stage.acknowledged(started, outcomes)


class _TensorParallelAlone(Agreement):
    def __init__(self, groups: Mapping[str, Group]) -> None:
        super().__init__({axis: group for axis, group in groups.items() if axis == "tp"})


class StagesOnTheirOwn(OtherAgreement):
    """Each pipeline stage takes over what has ended on that stage."""

    agreement_type = _EachStage


class TensorParallelAlone(OtherAgreement):
    """All is agreed along tp alone, whatever other axes there are."""

    agreement_type = _TensorParallelAlone
