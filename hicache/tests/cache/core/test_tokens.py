"""Token ids: what is taken as them, what is refused by position, value and type, and that none is ever cut."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hicache.errors import KeyFormError
from hicache.keys import LARGEST_TOKEN, RadixKey, token_ids
from hicache.types import SHARED

IDS = [0, 7, 65_536, 65_537, LARGEST_TOKEN]


class Tensor:
    """An array of another library on a device, as NumPy sees it. `device`: cpu, or where NumPy cannot read it."""

    def __init__(self, ids: list[int], device: str) -> None:
        self.ids = np.array(ids, dtype=np.int64)
        self.device = device

    def cpu(self) -> Tensor:
        return Tensor(self.ids.tolist(), "cpu")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self.device != "cpu":
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                "memory first."
            )
        return self.ids


TAKEN: dict[str, Callable[[], Any]] = {
    "int32": lambda: np.array(IDS, dtype=np.int32),
    "int64": lambda: np.array(IDS),
    "uint32": lambda: np.array(IDS, dtype=np.uint32),
    "uint64": lambda: np.array(IDS, dtype=np.uint64),
    "big-endian": lambda: np.array(IDS, dtype=">i4"),
    "every other of an array": lambda: np.repeat(np.array(IDS, dtype=np.int32), 2)[::2],
    "a list": lambda: IDS,
    "a tuple": lambda: tuple(IDS),
    "integers of numpy": lambda: [np.int64(token) for token in IDS],
    "an array of the standard library": lambda: array("q", IDS),
    "a tensor": lambda: Tensor(IDS, "cpu"),
}

NONE = {"a list": [], "a tuple": (), "an array": np.empty(0, dtype=np.int64)}

ALLOWED = "token ids are integers from 0 to 2147483647"
SEQUENCE = "a prompt is a list, an array or a tensor of token ids"

REFUSED: dict[str, tuple[Any, str]] = {
    "negative": (np.array([1, -1], dtype=np.int32), f"token 1 is -1 (int32): {ALLOWED}"),
    "the least": (np.array([-(2**31)], dtype=np.int32), f"token 0 is -2147483648 (int32): {ALLOWED}"),
    "negative in int64": (np.array([1, 2, -1]), f"token 2 is -1 (int64): {ALLOWED}"),
    "negative in a list": ([1, -1], f"token 1 is -1 (int): {ALLOWED}"),
    "beyond int32": (np.array([1, 2**31]), f"token 1 is 2147483648 (int64): {ALLOWED}"),
    "equal when cut": (np.array([2**32 + 7]), f"token 0 is 4294967303 (int64): {ALLOWED}"),
    "beyond int32 without a sign": (np.array([2**63], dtype=np.uint64), f"token 0 is {2**63} (uint64): {ALLOWED}"),
    "beyond int32 in a list": ([1, 2**31], f"token 1 is 2147483648 (int): {ALLOWED}"),
    "beyond int64 in a list": ([-1, 2**70], f"token 0 is -1 (int): {ALLOWED}"),
    "only beyond int64": ([1, 2**70], f"token 1 is {2**70} (int): {ALLOWED}"),
    "a float": ([1, 1.0], f"token 1 is 1.0 (float): {ALLOWED}"),
    "floats": (np.array([1.0, 2.0]), f"token 0 is 1.0 (float64): {ALLOWED}"),
    "no floats": (np.empty(0), f"token ids have dtype float64: {ALLOWED}"),
    "true": ([1, True], f"token 1 is True (bool): {ALLOWED}"),
    "flags": (np.array([True, False]), f"token 0 is True (bool): {ALLOWED}"),
    "texts": (["1"], f"token 0 is '1' (str): {ALLOWED}"),
    "texts of numpy": (np.array(["1"]), f"token 0 is '1' (<U1): {ALLOWED}"),
    "objects": (np.array([1, 2], dtype=object), f"token 0 is 1 (object): {ALLOWED}"),
    "rows": (
        np.ones((2, 3), dtype=np.int32),
        "token ids have shape (2, 3) and dtype int32: a prompt has one dimension",
    ),
    "a list of lists": ([[1, 2], [3]], f"token 0 is [1, 2] (list): {ALLOWED}"),
    "one number": (7, f"token ids are 7 (int): {SEQUENCE}"),
    "a text": ("123", f"token ids are '123' (str): {SEQUENCE}"),
    "nothing": (None, f"token ids are None (NoneType): {SEQUENCE}"),
    "a set": ({7}, f"token ids are {{7}} (set): {SEQUENCE}"),
    "a tensor on a GPU": (
        Tensor(IDS, "cuda:0"),
        "token ids are on cuda:0, and the cache reads them in CPU memory: give tokens.cpu().numpy()",
    ),
}


def keys_of(ids: object) -> list[RadixKey]:
    """With tokens and with pairs as elements."""
    return [RadixKey.of(ids, SHARED, 1, bigram) for bigram in (False, True)]  # type: ignore[arg-type]


@pytest.mark.parametrize("make", TAKEN.values(), ids=TAKEN)
def test_integers_of_any_form_are_the_same_key(make: Callable[[], Any]) -> None:
    expected = keys_of(np.array(IDS, dtype=np.int32))
    found = keys_of(make())
    assert found == expected, f"expected {expected}, got {found}"
    assert found[0].data == np.array(IDS, dtype="<i4").tobytes(), f"{IDS} in 4 bytes each, got {found[0].data!r}"


@pytest.mark.parametrize("ids", NONE.values(), ids=NONE)
def test_no_tokens_are_a_key_of_no_pages(ids: Any) -> None:
    assert keys_of(ids) == [RadixKey(b"", SHARED)] * 2, f"expected empty keys, got {keys_of(ids)}"


@pytest.mark.parametrize(("ids", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_token_is_refused_and_never_cut(ids: Any, message: str) -> None:
    with pytest.raises(KeyFormError) as refusal:
        token_ids(ids)
    assert str(refusal.value) == message, f"expected {message!r}, got {str(refusal.value)!r}"


def test_the_line_that_the_refusal_names_converts_a_tensor() -> None:
    assert token_ids(np.asarray(Tensor(IDS, "cuda:0").cpu())).tolist() == IDS, "after `cpu` it is taken"


def test_an_int32_array_is_not_copied() -> None:
    ids = np.array(IDS, dtype=np.int32)
    assert token_ids(ids) is ids, "the form of the hot path is not copied"
