"""Shrinking: Hypothesis makes no example smaller for a test that is known to fail. It finds one, and that is enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_shrinking(test: Any) -> Iterator[None]:
    """Run a test without shrinking: its own settings, if it is a Hypothesis test, and those made while it runs."""
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    before = settings.default
    _make_default(settings(before, phases=phases))
    # The attribute that Hypothesis' own pytest plugin sets, for lack of a public way to change a decorated test.
    function = getattr(test, "__func__", test)
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    if own is not None:
        function._hypothesis_internal_use_settings = settings(own, phases=phases)  # noqa: SLF001
    try:
        yield
    finally:
        _make_default(before)
        if own is not None:
            function._hypothesis_internal_use_settings = own  # noqa: SLF001


def _make_default(chosen: Any) -> None:
    from hypothesis import settings

    settings.register_profile("hicache", chosen)
    settings.load_profile("hicache")
