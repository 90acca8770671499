"""Shrinking: disables Hypothesis' shrinking for a test that is known to fail, as one example is enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_shrinking(test: Any) -> Iterator[None]:
    """Run a test without shrinking, in its own Hypothesis settings and in those made while it runs."""
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    before = settings.default
    _make_default(settings(before, phases=phases))
    # This is the attribute that Hypothesis' own pytest plugin sets; there is no public way to change a decorated test.
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
