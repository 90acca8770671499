"""SlotFileStorage: pages in the slots of a few large files, found through an index in SQLite."""
