"""Hypothesis sets no deadline here: on a machine with other work an example may take any time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("own", deadline=None)
settings.load_profile("own")
