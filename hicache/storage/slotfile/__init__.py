"""SlotFileStorage: stores pages in the slots of a few large files, with an index in SQLite."""
