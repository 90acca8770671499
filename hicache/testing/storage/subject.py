"""BackendSubject: a backend under test, its options with placeholders for what differs from place to place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DIRECTORY = "{directory}"
"""Stands in an option for a fresh folder."""

UNIQUE = "{unique}"
"""Stands in an option for a name that no other place has."""

CAPACITY_BYTES = "{capacity_bytes}"
"""Stands for an option: how much the backend may keep, an integer."""

CAPACITY_PAGES = "{capacity_pages}"
"""Stands for an option: the same as a number of pages, an integer."""

PAGE_BYTES = "{page_bytes}"
"""Stands for an option: the size of the largest page that will be kept, an integer."""

METADATA_URL = "{metadata_url}"
"""Stands for an option: where a metadata service of ours listens, which is fresh as well."""


@dataclass(frozen=True, slots=True)
class BackendSubject:
    """A backend by its name (registered, an entry point or `module:Class`) and its options."""

    name: str
    options: Mapping[str, Any]

    @property
    def is_on_disk(self) -> bool:
        """Whether it is told a folder, so that its files can be looked at and damaged."""
        return _mentions(self.options, DIRECTORY)

    @property
    def is_bounded(self) -> bool:
        """Whether it is told how much it may keep."""
        return self.counts_bytes or _mentions(self.options, CAPACITY_PAGES)

    @property
    def counts_bytes(self) -> bool:
        """Whether it is told so in bytes, whatever the sizes of pages are."""
        return _mentions(self.options, CAPACITY_BYTES)

    @property
    def asks_metadata(self) -> bool:
        """Whether it is told a metadata service."""
        return _mentions(self.options, METADATA_URL)

    def options_for(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The options with a value for each placeholder: as it is for a whole option, as text within one."""
        return {name: _filled(option, values) for name, option in self.options.items()}


def _mentions(option: object, placeholder: str) -> bool:
    if isinstance(option, str):
        return placeholder in option
    if isinstance(option, Mapping):
        return any(_mentions(one, placeholder) for one in option.values())
    return isinstance(option, list) and any(_mentions(one, placeholder) for one in option)


def _filled(option: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(option, str):
        return values[option] if option in values else _text(option, values)
    if isinstance(option, Mapping):
        return {name: _filled(one, values) for name, one in option.items()}
    return [_filled(one, values) for one in option] if isinstance(option, list) else option


def _text(option: str, values: Mapping[str, Any]) -> str:
    for placeholder, value in values.items():
        option = option.replace(placeholder, str(value))
    return option
