"""Preparation: adds to each collected test its tags, the reason to skip it, and its known failure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

import pytest

from hicache.config import CacheConfig
from hicache.testing.contract import Checks
from hicache.testing.plugin.hooks import DEFAULT_ADAPTER, KNOWN_FAILURE
from hicache.testing.plugin.known_failures import KnownFailure
from hicache.testing.plugin.selection import Selection, select_clauses
from hicache.testing.plugin.subject import subject_of
from hicache.testing.plugin.tags import Tags, place_in_suite, suite_of
from hicache.testing.ranks.world import Mesh
from hicache.testing.storage.subject import BackendSubject

NO_SELECTION = Selection((), (), "")


def prepare(item: pytest.Item, known: Sequence[KnownFailure]) -> None:
    """Prepare a test that names clauses or lies in a suite; leave any other test unchanged."""
    mark = item.get_closest_marker("clause")
    suite = suite_of(item.path, item.config.rootpath)
    if mark is None and not suite:
        return
    selection = _select(item, mark.args[0]) if mark is not None else NO_SELECTION
    tags = Tags(suite, _test_id(item), selection.clauses, _configuration(item), _replay_command(item))
    item.user_properties.extend(tags.to_properties())
    # Lets `-k LOCK-3` select the tests of a clause.
    item.extra_keyword_matches.update(selection.clauses)
    if selection.reason:
        item.add_marker(pytest.mark.skip(reason=selection.reason))
    failure = next((failure for failure in known if failure.covers(tags.test, tags.clauses)), None)
    if failure is not None:
        item.stash[KNOWN_FAILURE] = failure.place
        item.add_marker(pytest.mark.xfail(reason=str(failure), strict=True))


def _select(item: pytest.Item, checks: Checks) -> Selection:
    # A test with one of these parameters was parametrized with fitting values at collection.
    if not {"config", "backend"}.isdisjoint(getattr(item, "fixturenames", ())):
        return Selection((), checks.clauses, "")
    return select_clauses(checks, subject_of(item.config).adapter)


def _test_id(item: pytest.Item) -> str:
    return f"{place_in_suite(item.path, item.config.rootpath).as_posix()}::{_name(item)}"


def _name(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2]


def _configuration(item: pytest.Item) -> str:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    config, backend, mesh = parameters.get("config"), parameters.get("backend"), parameters.get("mesh")
    if isinstance(backend, BackendSubject):
        return f"storage/{backend.name}"
    if isinstance(mesh, Mesh):
        return f"ranks/{mesh.name}/{parameters.get('transport')}"
    return config.name if isinstance(config, CacheConfig) else ""


def _replay_command(item: pytest.Item) -> str:
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    words = ["pytest", f"{path}::{_name(item)}"]
    return shlex.join([*words, *_subject_options(item.config)])


def _subject_options(config: pytest.Config) -> Iterator[str]:
    for option, default in (("--adapter", DEFAULT_ADAPTER), ("--backend", None), ("--backend-config", None)):
        if config.getoption(option) != default:
            yield from (option, config.getoption(option))
