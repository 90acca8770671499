"""Traces: what is read, and what is refused with the file, the line and the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hicache.errors import TraceError
from hicache.testing.traces import Trace, TraceRequest, write_trace

GOOD = {"timestamp": 3, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
REQUEST = TraceRequest(timestamp_ms=3, input_length=700, output_length=5, hash_ids=(0, 1))

MALFORMED = {
    "no JSON": "{",
    "an empty line": "",
    "a list": "[]",
    "a number": "1",
    "not UTF-8": "\udcff",
    "nested too deep": "[" * 100_000,
    "an integer of too many digits": '{"timestamp": ' + "9" * 5000 + "}",
    **{f"{field} missing": json.dumps({k: v for k, v in GOOD.items() if k != field}) for field in GOOD},
    **{
        f"{field} {value!r}": json.dumps(GOOD | {field: value})
        for field in ("timestamp", "input_length", "output_length")
        for value in (True, "7", 7.0, None, -1, float("nan"), [7])
    },
    **{
        f"hash_ids {ids!r}": json.dumps(GOOD | {"hash_ids": ids})
        for ids in (None, "01", 2, {"0": 1}, [0], [0, 1, 2], [], [0, -1], [0, True], [0, 1.0], [0, None], [0, 2**31])
    },
}


def write_lines(path: Path, *lines: str) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return path


def test_a_written_trace_reads_back(tmp_path: Path) -> None:
    requests = [REQUEST, TraceRequest(9, 512, 0, (2,)), TraceRequest(9, 0, 1, ())]
    path = tmp_path / "trace.jsonl"
    write_trace(path, requests)
    assert list(Trace(path, skip_bad=False, limit=None)) == requests, "expected the trace that was written"


def test_fields_that_the_format_does_not_name_are_ignored(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD | {"user": "someone"}))
    assert list(Trace(path, skip_bad=False, limit=None)) == [REQUEST], "an additional field changed the request"


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD), line)
    requests = iter(Trace(path, skip_bad=False, limit=None))
    assert next(requests) == REQUEST, "the good line before a malformed one was not read"
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 2: .+"):
        next(requests)


def test_the_reason_holds_field_and_value(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD | {"output_length": True}))
    with pytest.raises(TraceError, match="output_length is True"):
        list(Trace(path, skip_bad=False, limit=None))


def test_skip_bad_counts_and_goes_on(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", *MALFORMED.values(), json.dumps(GOOD))
    trace = Trace(path, skip_bad=True, limit=None)
    for reading in ("first", "second"):
        assert list(trace) == [REQUEST], f"the {reading} reading did not find the one good line"
        assert trace.skipped == len(MALFORMED), f"{reading} reading: {trace.skipped} skipped, {len(MALFORMED)} are bad"


def test_a_limit_ends_the_reading_before_what_follows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD), "malformed")
    assert list(Trace(path, skip_bad=False, limit=1)) == [REQUEST], "a limit of 1 did not give the first request alone"


def test_reading_holds_one_line_at_a_time(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD))
    trace = Trace(path, skip_bad=False, limit=None)
    first, second = iter(trace), iter(trace)
    assert (next(first), next(second)) == (REQUEST, REQUEST), "expected two independent readings of one trace"
