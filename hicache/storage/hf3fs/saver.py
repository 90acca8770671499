"""Saver: a thread that writes the file of a catalogue anew when its journal is long."""

from __future__ import annotations

import logging
from threading import Event, Thread

from hicache.storage.hf3fs.catalogue import Catalogue

LOG = logging.getLogger(__name__)

RETRY_S = 10.0
"""How long it waits after a failure, such as a full disk."""


class Saver:
    """Saves a catalogue from `start` until `close`, whenever `wake` was called and the journal is long."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._woken, self._ended = Event(), Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Save soon, if the journal is long."""
        if self._catalogue.is_long:
            self._woken.set()

    def close(self) -> None:
        """End the thread, after the save that it is at."""
        self._ended.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while self._woken.wait() and not self._ended.is_set():
            self._woken.clear()
            if self._catalogue.is_long:
                self._save()

    def _save(self) -> None:
        try:
            self._catalogue.save()
        except OSError as error:
            LOG.warning("the metadata file cannot be written; the journal has all changes: %s", error)
            self._ended.wait(RETRY_S)
