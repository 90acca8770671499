"""BackendSubject: a backend under test, whose options have placeholders for values that differ by place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DIRECTORY = "{directory}"
"""A placeholder in an option for a new folder."""

UNIQUE = "{unique}"
"""A placeholder in an option for a unique name."""

CAPACITY_BYTES = "{capacity_bytes}"
"""A placeholder for an option: the capacity in bytes, an integer."""

CAPACITY_PAGES = "{capacity_pages}"
"""A placeholder for an option: the capacity in pages, an integer."""

PAGE_BYTES = "{page_bytes}"
"""A placeholder for an option: the size of the largest page, an integer."""

METADATA_URL = "{metadata_url}"
"""A placeholder for an option: the address of a new metadata service of this project."""


@dataclass(frozen=True, slots=True)
class BackendSubject:
    """A backend, given by its name (registered, an entry point or `module:Class`), and its options."""

    name: str
    options: Mapping[str, Any]

    @property
    def is_on_disk(self) -> bool:
        """Whether an option is a folder, so that the files can be read and damaged."""
        return _mentions(self.options, DIRECTORY)

    @property
    def is_bounded(self) -> bool:
        """Whether an option is a capacity."""
        return self.counts_bytes or _mentions(self.options, CAPACITY_PAGES)

    @property
    def counts_bytes(self) -> bool:
        """Whether an option is a capacity in bytes, for pages of any size."""
        return _mentions(self.options, CAPACITY_BYTES)

    @property
    def asks_metadata(self) -> bool:
        """Whether an option is the address of a metadata service."""
        return _mentions(self.options, METADATA_URL)

    def options_for(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The options with each placeholder replaced: by the value as a whole option, by its text inside one."""
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
