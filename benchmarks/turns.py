"""Turns: the same work on two caches by turns, so that whatever slows the machine slows both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import process_time_ns
from typing import Any


class Turns:
    """The least CPU time that each verb took for one batch. Time that other processes take is not counted."""

    def __init__(self) -> None:
        self.least_us: dict[str, float] = {}

    def take(self, verb: str, call: Callable[[Any], object], arguments: Iterable[Any]) -> None:
        """Call a verb once with each argument, and time the batch."""
        begin = process_time_ns()
        for argument in arguments:
            call(argument)
        elapsed_us = (process_time_ns() - begin) / 1000
        self.least_us[verb] = min(elapsed_us, self.least_us.get(verb, elapsed_us))
