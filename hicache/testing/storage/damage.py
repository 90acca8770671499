"""Damage: finds the position of a page in a backend's files, and corrupts the file there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_SHARE = 16
"""The number of bytes of a page that are searched for."""


@dataclass(frozen=True, slots=True)
class Found:
    """The position of a page in a file."""

    path: Path
    offset: int
    size: int


def files_of(directory: Path) -> list[Path]:
    """All files below a folder, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def disk_bytes(directory: Path) -> int:
    """The disk usage of the files below a folder, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in files_of(directory))


def find_page(directory: Path, page: bytes) -> Found | None:
    """The position of the page's first bytes in a file below the folder; None when no file has them."""
    for path in files_of(directory):
        offset = path.read_bytes().find(page[:_SHARE])
        if offset >= 0:
            return Found(path, offset, len(page))
    return None


def _flip(found: Found) -> None:
    with found.path.open("r+b") as file:
        file.seek(found.offset + found.size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def _blank(found: Found) -> None:
    with found.path.open("r+b") as file:
        file.seek(found.offset + found.size // 2)
        file.write(bytes(found.size - found.size // 2))


def _truncate(found: Found) -> None:
    with found.path.open("r+b") as file:
        file.truncate(found.offset + found.size // 2)


def _lengthen(found: Found) -> None:
    with found.path.open("ab") as file:
        file.write(b"\x01" * 100)


def _empty(found: Found) -> None:
    found.path.write_bytes(b"")


def _remove(found: Found) -> None:
    found.path.unlink()


DAMAGES: Mapping[str, Callable[[Found], None]] = {
    "a flipped bit": _flip,
    "a blank half": _blank,
    "a file that ends within the page": _truncate,
    "a file that is too long": _lengthen,
    "an empty file": _empty,
    "a file that is gone": _remove,
}
"""Ways to corrupt a file that holds a page."""
