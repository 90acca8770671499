"""Unit tests of the reference cache and of the kit. They are not in the wheel."""
