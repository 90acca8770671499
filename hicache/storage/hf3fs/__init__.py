"""Hf3fsStorage: stores pages in plain files or files of 3FS; a metadata service assigns pages to keys."""
