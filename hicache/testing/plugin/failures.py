"""What is known of a failed test: the last calls and trees, the causes, and the frames that its traceback shows.

The calls are recorded by a subclass of the adapter, so that what a test does beside the driver is recorded too. The
verb that a process is calling is also in a file, which outlives the process.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from traceback import StackSummary, TracebackException, walk_tb
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.plugin.tags import place_in_suite, suite_of
from hicache.testing.plugin.witnesses import WITNESSED
from hicache.testing.report.run import Evidence, Step
from hicache.testing.snapshot import BlockSnapshot, NodeView, Snapshot
from hicache.testing.violation import ViolationError
from hicache.types import SHARED, Key

if TYPE_CHECKING:
    import pytest

MAX_OUTPUT = 50_000_000
"""How much a test may print, in bytes: pytest keeps it in a file."""

_POLL_S = 0.2
_VERB = slice(0, 256)
_REASON = slice(256, 512)


class Doing:
    """What one process does. It says nothing until a file is opened."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None

    def open(self, path: Path) -> None:
        """Write to this file from now on, and end the process when a test prints too much."""
        path.write_bytes(bytes(_REASON.stop))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        threading.Thread(target=self._watch, name="hicache-output", daemon=True).start()

    def call(self, verb: str) -> None:
        """Say which verb of the adapter is being called; empty for none."""
        self._write(_VERB, verb)

    def _write(self, place: slice, text: str) -> None:
        if self._map is not None:
            size = place.stop - place.start
            self._map[place] = text.encode(errors="replace")[:size].ljust(size, b"\0")

    def _watch(self) -> None:
        never = threading.Event()
        while not never.wait(_POLL_S):
            printed = os.fstat(1)
            if stat.S_ISREG(printed.st_mode) and printed.st_size > MAX_OUTPUT:
                self._write(_REASON, f"more than {MAX_OUTPUT:,} characters of output")
                os._exit(1)


DOING = Doing()
"""That of this process."""


def read_doing(path: Path) -> tuple[str, str]:
    """The verb that a process was calling when it ended, and the reason for which it was ended; each may be empty."""
    if not path.exists():
        return "", ""
    known = path.read_bytes()
    return _text(known[_VERB]), _text(known[_REASON])


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")


VERBS = (
    *("allocate", "free", "match", "insert", "lock", "unlock", "evict", "reset", "step", "drain"),
    *("release_window", "allocate_state", "free_state", "fork_state"),
    *("lookup", "admit", "resume", "extend", "checkpoint", "finish", "abort", "preempt", "pin", "unpin"),
    *("evict_host", "lock_host", "unlock_host", "load_back", "claim", "abandon"),
    *("advance", "complete", "fail", "fail_waits"),
    *("prefetch", "check_prefetch", "abort_prefetch", "attach_storage", "detach_storage", "clear_storage"),
    "advance_clock",
)
"""The verbs that are recorded. What only reads the cache is not."""

RECORDER = __file__
"""The file of the frames that record calls, which are neither the adapter's nor the test's."""

MAX_STEPS = 40
_MAX_SHOWN = 6
_RECORD = "_hicache_record"
_RECORDS = "_hicache_records"
_OURS = ("hicache.types", "hicache.testing.adapter")
"""The modules of the answers of verbs. All other objects among the values of verbs are a cache's own handles."""

Call = tuple[str, tuple[object, ...], Mapping[str, object], object]


class Record:
    """The last calls of one adapter, unformatted, and its snapshots.

    `before`, `after`: the last snapshot before the last call, and the last one after it. `is_inside`: a verb is being
    called.
    """

    def __init__(self) -> None:
        self.calls: deque[Call] = deque(maxlen=MAX_STEPS)
        self.before: object = None
        self.after: object = None
        self.is_inside = False

    def called(self, call: Call) -> None:
        """A call has ended. What was taken before it shows the tree before it."""
        self.calls.append(call)
        if self.after is not None:
            self.before, self.after = self.after, None


class Called:
    """The record of the adapter, or driver of a backend, that was called last in the running test.

    The adapter itself is not kept: a test may drop it before it fails.
    """

    def __init__(self) -> None:
        self._last: Record | None = None

    def note(self, record: Record) -> None:
        """A call of the adapter or driver of this record begins."""
        self._last = record

    def forget(self) -> None:
        """Another test begins."""
        self._last = None

    def record(self) -> Record | None:
        """The record, or None where the test has called nothing."""
        return self._last


CALLED = Called()
"""That of this process."""


@cache
def recorded(adapter: type[CacheAdapter]) -> type[CacheAdapter]:
    """A subclass of the same name that records the calls of verbs. A class that does so is returned unchanged."""
    if _RECORDS in vars(adapter):
        return adapter
    methods: dict[str, Any] = {
        name: _recording(getattr(adapter, name), name) for name in VERBS if hasattr(adapter, name)
    }
    methods |= {name: _remembering(getattr(adapter, name), name) for name in ("snapshot", "block_snapshot")}
    methods |= {name: _witnessing(getattr(adapter, name), name) for name in ("read", "read_host")}
    methods[_RECORDS] = True
    names = {"__module__": adapter.__module__, "__qualname__": adapter.__qualname__, "__doc__": adapter.__doc__}
    return type(adapter.__name__, (adapter,), methods | names)


def record_call(driver: object, call: Call) -> None:
    """Record a call that the driver of a backend made."""
    record = record_of(driver)
    CALLED.note(record)
    record.called(call)


def evidence(record: Record | None, raised: BaseException) -> Evidence:
    """What is known of a failure. `record`: of what was called last, or None when the test called nothing."""
    before, after = (None, None) if record is None else (record.before, record.after)
    handles = Handles()
    return Evidence(
        steps=() if record is None else tuple(_step(call, handles) for call in record.calls),
        before=_shown(before),
        after=_shown(after),
        traceback="".join(_adapter_frames(raised.__traceback__)),
    )


def record_of(subject: object) -> Record:
    """The record of an adapter or driver; a new one before its first call."""
    # A record for each call, which `setdefault` would need, costs more than the rest of the recording.
    record: Record | None = vars(subject).get(_RECORD)
    if record is None:
        record = vars(subject)[_RECORD] = Record()
    return record


def _recording(method: Callable[..., object], name: str) -> Callable[..., object]:
    """The verb, which is recorded when it is called from outside, and not by another verb."""

    def verb(self: CacheAdapter, *arguments: object, **named: object) -> object:
        record = record_of(self)
        if record.is_inside:
            return method(self, *arguments, **named)
        record.is_inside = True
        CALLED.note(record)
        DOING.call(f"{type(self).__name__}.{name}")
        try:
            answer = method(self, *arguments, **named)
        except Exception as error:
            record.called((name, arguments, named, error))
            raise
        finally:
            record.is_inside = False
            DOING.call("")
        record.called((name, arguments, named, answer))
        WITNESSED.add(name, answer)
        return answer

    verb.__name__ = name
    return verb


def _remembering(method: Callable[..., object], name: str) -> Callable[..., object]:
    def snapshot(self: CacheAdapter) -> object:
        record = record_of(self)
        CALLED.note(record)
        taken = method(self)
        WITNESSED.add_snapshots(record.after or record.before, taken)
        record.after = taken
        return taken

    snapshot.__name__ = name
    return snapshot


def _witnessing(method: Callable[..., object], name: str) -> Callable[..., object]:
    def read(self: CacheAdapter, *arguments: object, **named: object) -> object:
        answer = method(self, *arguments, **named)
        WITNESSED.add(name, answer)
        return answer

    read.__name__ = name
    return read


class Handles:
    """The handles of a cache among the values of its verbs, numbered by type in the order in which they appear.

    Equal handles that can be hashed have one number: a cache may make a new object for each answer.
    """

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._counts: Counter[str] = Counter()

    def name(self, value: object) -> tuple[str, bool]:
        """The name of a handle, such as `Node 2`, and whether it is new."""
        try:
            known: object = (type(value), value)
            is_new = known not in self._names
        except Exception:  # noqa: BLE001 - the cache under test has written __hash__ and __eq__
            known = id(value)
            is_new = known not in self._names
        if is_new:
            kind = type(value).__name__
            self._counts[kind] += 1
            self._names[known] = f"{kind} {self._counts[kind]}"
        return self._names[known], is_new


def _step(call: Call, handles: Handles) -> Step:
    name, arguments, named, answer = call
    shown = [text_of(value, handles) for value in arguments]
    shown += [f"{key}={text_of(value, handles)}" for key, value in named.items()]
    end = f"raised {type(answer).__name__}: {answer}" if isinstance(answer, Exception) else text_of(answer, handles)
    return Step(name, ", ".join(shown), end)


def text_of(value: object, handles: Handles, around: frozenset[int] = frozenset()) -> str:
    """A value of a verb in a few words: tokens and slots as ranges, a handle by its number, with its fields at first.

    `around`: the ids of the values that it is a part of. A value inside itself is shown by its type.
    """
    if isinstance(value, Key):
        namespace = "" if value.namespace == SHARED else f" in {value.namespace}"
        return f"[{_runs(value.tokens)}]{namespace}"
    inside = partial(text_of, handles=handles, around=around | {id(value)})
    is_inside_itself = id(value) in around
    if isinstance(value, (np.ndarray, list, tuple)) and not is_inside_itself:
        is_of_numbers = isinstance(value, np.ndarray) or {*map(type, value)} <= {int}
        return f"[{_runs(value) if is_of_numbers else ', '.join(_bounded(list(map(inside, value))))}]"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping) and not is_inside_itself:
        return "{" + ", ".join(f"{key}: {inside(one)}" for key, one in value.items()) + "}"
    if is_dataclass(value) and not isinstance(value, type) and not is_inside_itself:
        name, is_new = (type(value).__name__, True) if type(value).__module__ in _OURS else handles.name(value)
        parts = (f"{one.name}={inside(getattr(value, one.name))}" for one in fields(value) if is_new)
        return f"{name}({', '.join(parts)})" if is_new else name
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    handle = type(value).__name__ if is_plain or is_inside_itself else handles.name(value)[0]
    return str(value) if is_plain else handle


def _runs(numbers: Sequence[int] | np.typing.NDArray[Any]) -> str:
    """Numbers, with `1..16` for each run of three or more following ones, and `16..1` for one that goes down."""
    found: list[list[int]] = []
    for number in map(int, numbers):
        first, last = found[-1] if found else (number, number + 2)
        if number - last in ((1, -1) if first == last else (1 if last > first else -1,)):
            found[-1][1] = number
        else:
            found.append([number, number])
    # Of two numbers, `2..1` reads as an empty range.
    shown = [
        f"{first}..{last}" if abs(last - first) > 1 else ", ".join(map(str, dict.fromkeys((first, last))))
        for first, last in found[:_MAX_SHOWN]
    ]
    return ", ".join([*shown, f"and more, {len(numbers)} in all"] if len(found) > _MAX_SHOWN else shown)


def _bounded(words: Sequence[str]) -> list[str]:
    return [*words[:_MAX_SHOWN], *([f"and more, {len(words)} in all"] if len(words) > _MAX_SHOWN else [])]


def _shown(snapshot: object) -> str:
    if isinstance(snapshot, Snapshot):
        return tree_text(snapshot)
    return blocks_text(snapshot) if isinstance(snapshot, BlockSnapshot) else ""


def blocks_text(snapshot: BlockSnapshot) -> str:
    """The cached blocks of a cache of blocks, each on a line: its tokens from the first on, and who reads it."""
    blocks = sorted(snapshot.blocks, key=lambda one: (one.component, one.prefix, one.number))
    lines = (
        f"{one.component} {one.number}: ({_runs(np.frombuffer(one.prefix, dtype='<i4'))})"
        f"{f' [{one.references}]' if one.references else ''}"
        for one in blocks
    )
    return "\n".join(["cached blocks", *lines])


def tree_text(snapshot: Snapshot) -> str:
    """The tree, a node on each line: its elements, what is on which tier, and locks."""
    below: dict[int, list[int]] = {}
    for row, node in enumerate(snapshot.nodes):
        below.setdefault(node.parent, []).append(row)
    return "\n".join(["root", *_rows(snapshot, below, -1, "")])


def _rows(snapshot: Snapshot, below: Mapping[int, Sequence[int]], parent: int, indent: str) -> Iterator[str]:
    rows = below.get(parent, ())
    for row in rows:
        is_last = row == rows[-1]
        yield f"{indent}{'└─' if is_last else '├─'} {_node(snapshot, row)}"
        yield from _rows(snapshot, below, row, f"{indent}{'   ' if is_last else '│  '}")


def _node(snapshot: Snapshot, row: int) -> str:
    node, host, storage = snapshot.nodes[row], snapshot.host, snapshot.storage
    parts = [f"{node.start}..{node.end} {_first_tokens(node)}", _held("device", node.slots, node.locks)]
    if host is not None:
        parts.append(_held("host", host.nodes[row].slots, host.nodes[row].locks))
    if storage is not None and storage.persisted is not None:
        parts.append(f"storage {' '.join(sorted(storage.persisted[row])) or '-'}")
    return "  ".join(parts)


def _first_tokens(node: NodeView) -> str:
    return f"({_runs(np.frombuffer(node.segment, dtype='<i4'))})"


def _held(tier: str, slots: Mapping[str, Any], locks: Mapping[str, int]) -> str:
    names = [name + (f"[{locks[name]}]" if locks[name] else "") for name, own in slots.items() if own is not None]
    return f"{tier} {' '.join(names) or '-'}"


def _adapter_frames(trace: TracebackType | None) -> Iterator[str]:
    """The frames from the first verb of the adapter on, without those of this module."""
    is_inside = False
    for frame, line in traceback.walk_tb(trace):
        is_inside |= isinstance(frame.f_locals.get("self"), CacheAdapter)
        if is_inside and frame.f_code.co_filename != RECORDER:
            yield from traceback.format_list(traceback.StackSummary.extract(iter([(frame, line)])))


CAUSES = "hicache.causes"
"""The report property with the causes of a failure, as JSON."""

CRASHED = "the process of the test ended"
"""The cause of a failure without an exception: the worker process died."""

TIMED_OUT = "the test took too long"
"""The cause of a failure by a time limit: pytest ends its process, and pytest-timeout ends it with pytest.fail()."""

_TIMEOUT = "Timeout (>"
"""The start of its message."""

STALE = "a known failure that passes"

FLAKY = "flaky: a test that fails and passes"
"""The cause of a failure that a repetition of the test, or of its example, did not show."""

FAILED_BY_CALL = "Failed"
"""The name of the exception of pytest.fail(). Help must come quickly, so pytest is not imported for it."""


def causes_of(raised: BaseException, clauses: Sequence[str]) -> tuple[str, ...]:
    """The causes of a failure: ids of clauses, or for an error its type and the verb of the adapter that raised it.

    What Hypothesis found to depend on more than the example is FLAKY. A law names its clause. An assertion of a test is
    about the clauses that the test names, or about the one clause whose id begins its message; where neither names one,
    it is an error. `clauses`: those that the test names.
    """
    if any(one.__name__ == "Flaky" and one.__module__ == "hypothesis.errors" for one in type(raised).__mro__):
        return (FLAKY,)
    return tuple(dict.fromkeys(cause for one in members(raised) for cause in _causes(one, clauses)))


def members(raised: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, or the exception itself."""
    # The class is not named here because Python 3.10 has no ExceptionGroup.
    for one in getattr(raised, "exceptions", (raised,)):
        yield from members(one) if hasattr(one, "exceptions") else (one,)


def to_property(causes: Iterable[str]) -> tuple[str, object]:
    """The causes as a user property of a report, which worker processes can send."""
    return CAUSES, json.dumps(list(causes))


def read_causes(properties: Iterable[tuple[str, object]]) -> tuple[str, ...]:
    """The causes in the user properties of a report."""
    return tuple(cause for name, value in properties if name == CAUSES for cause in json.loads(str(value)))


def _causes(raised: BaseException, clauses: Sequence[str]) -> tuple[str, ...]:
    chain = list(_chain(raised))
    broken = tuple(one.clause for one in chain if isinstance(one, ViolationError))
    if broken:
        return broken[:1]
    if found := getattr(raised, "causes", ()):
        # The causes that the processes of ranks reported.
        return tuple(found)
    if type(raised).__qualname__ == FAILED_BY_CALL and str(raised).startswith(_TIMEOUT):
        return (TIMED_OUT,)
    if isinstance(raised, AssertionError) or type(raised).__qualname__ == FAILED_BY_CALL:
        named = str(raised).partition(":")[0]
        return (named,) if named in CONTRACT else tuple(clauses) or (_error(raised),)
    return (_error(raised),)


def _chain(raised: BaseException) -> Iterator[BaseException]:
    """The exception, and those that it was raised from."""
    one: BaseException | None = raised
    while one is not None:
        yield one
        one = one.__cause__


def _error(raised: BaseException) -> str:
    verbs = list(_verbs(raised.__traceback__))
    return f"{type(raised).__name__} in {verbs[0]}" if verbs else f"{type(raised).__name__} in the test"


def _verbs(traceback: TracebackType | None) -> Iterator[str]:
    """The verbs of the adapter that were being called, the outermost first."""
    while traceback is not None:
        code, owner = traceback.tb_frame.f_code, traceback.tb_frame.f_locals.get("self")
        if isinstance(owner, CacheAdapter) and code.co_filename != RECORDER:
            yield f"{type(owner).__name__}.{code.co_name}"
        traceback = traceback.tb_next


_HIDE = "__tracebackhide__"
"""pytest hides the frames of a module with this variable; if it is a function, those for which it returns True."""

_KIT = "hicache.testing"
_CACHES = tuple(f"{_KIT}.{name}" for name in ("adapter", "caches", "templates"))
"""Modules of the kit whose frames are those of a cache."""


def shows_all(config: pytest.Config) -> bool:
    """Whether the user asked for all frames: by --full-trace, or by a style that is not the default one."""
    return bool(config.getoption("fulltrace", False)) or config.getoption("tbstyle", "auto") in ("long", "native")


@contextmanager
def hidden_frames(raised: BaseException, test: Path, root: Path) -> Iterator[None]:
    """Hide the frames of the kit, of the helper modules of the test's suite and of Hypothesis while a report is made.

    `test`: the file of the test. `root`: the root folder of the run. An error that such a frame raised itself, other
    than by a check, hides nothing.
    """
    suite = _suite_folder(test, root)

    def hides(excinfo: pytest.ExceptionInfo[BaseException] | None) -> bool:
        if excinfo is None:
            return False
        is_check = isinstance(excinfo.value, AssertionError) or type(excinfo.value).__qualname__ == FAILED_BY_CALL
        *_, last = (frame for frame, _ in walk_tb(excinfo.value.__traceback__))
        return is_check or not _is_of_kit(last, suite)

    hidden = [one.f_globals for one in _frames(raised) if _is_of_kit(one, suite) and _HIDE not in one.f_globals]
    for names in hidden:
        names[_HIDE] = hides
    try:
        yield
    finally:
        for names in hidden:
            names.pop(_HIDE, None)


def format_visible(raised: BaseException) -> Iterator[str]:
    """The traceback as text. Of a failed check, without the frames of the kit."""
    text = TracebackException.from_exception(raised)
    if isinstance(raised, AssertionError):
        frames = zip(walk_tb(raised.__traceback__), text.stack, strict=True)
        text.stack = StackSummary.from_list([line for (frame, _), line in frames if not _is_of_kit(frame, None)])
    yield from text.format()


def _suite_folder(test: Path, root: Path) -> Path | None:
    """The folder of the suite that a test is in; None where it is in none."""
    return test.parents[len(place_in_suite(test, root).parts) - 2] if suite_of(test, root) else None


def _frames(raised: BaseException) -> Iterator[FrameType]:
    """The frames of an exception, of the members of a group, and of what each was raised from."""
    for member in members(raised):
        one: BaseException | None = member
        while one is not None:
            yield from (frame for frame, _ in walk_tb(one.__traceback__))
            one = one.__cause__ or one.__context__


def _is_of_kit(frame: FrameType, suite: Path | None) -> bool:
    return _is_kit_file(frame.f_code.co_filename, frame.f_globals.get("__name__", ""), suite)


@cache
def _is_kit_file(file: str, module: str, suite: Path | None) -> bool:
    # By its file: the function that it makes of a test has no module.
    search = getattr(sys.modules.get("hypothesis"), "__file__", None)
    if search and Path(search).parent in Path(file).parents:
        return True
    if f"{module}.".startswith(f"{_KIT}."):
        return not any(f"{module}.".startswith(f"{name}.") for name in _CACHES)
    return suite is not None and suite in Path(file).parents and not Path(file).name.startswith("test_")
