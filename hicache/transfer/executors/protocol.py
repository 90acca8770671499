"""Executor and Copier: the protocols between the controller, who moves bytes, and how they are moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hicache.transfer.job import Job


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come.

    `layers`: of the stack's layers, in the stack's order, how many have arrived with all their pools; a reader may read
    those. `has_ended`: nothing of the job is running any more, nor will be. `parts_done`: how many of its first parts
    are whole; of a job that has not ended, 0.
    """

    layers: int
    has_ended: bool
    parts_done: int


class Copier(Protocol):
    """Moves the bytes of a job, sidecar pools with the pool that they follow. It knows pools and nothing else."""

    @property
    def layers(self) -> int:
        """Layers of the whole stack, of every kind: what `copy_layer` counts."""

    def copy_layer(self, job: Job, layer: int) -> None:
        """Copy one layer of the stack, in all pools that have it. Returns when the bytes are there."""

    def copy(self, job: Job) -> None:
        """Copy all layers of all pools. Returns when the bytes are there."""

    def queue_layer(self, job: Job, layer: int) -> None:
        """As `copy_layer`, but on a GPU the copies are only queued, on the current stream."""

    def queue(self, job: Job) -> None:
        """As `copy`, but on a GPU the copies are only queued, on the current stream."""


class Executor(Protocol):
    """Runs jobs. Called by the scheduler thread only; nothing but `wait` and `wait_layer` may block."""

    def submit(self, job: Job) -> None:
        """Start a job, after those that were submitted before. Returns at once."""

    def progress(self, number: int) -> Progress:
        """How far a submitted job has come. Raises KeyError for one that is not known, or was forgotten."""

    def wait(self, number: int) -> None:
        """Return when the job has ended."""

    def wait_layer(self, number: int, layer: int) -> None:
        """Return when the layer may be read, or the job has ended. On a GPU the reader's stream waits instead."""

    def forget(self, number: int) -> None:
        """The controller has seen the end of a job."""

    def close(self) -> None:
        """End every job and stop. May be called twice."""
