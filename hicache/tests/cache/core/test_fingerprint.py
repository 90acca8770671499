"""fingerprint_of_model: equal where KV is equal, and another one for each thing that changes KV."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.fingerprint import fingerprint_of_model

CONFIG: dict[str, Any] = {
    "_name_or_path": "org/name",
    "model_type": "qwen3",
    "hidden_size": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "sliding_window": None,
    "dtype": "bfloat16",
    "transformers_version": "5.0",
}
OWN = fingerprint_of_model(CONFIG, revision="abc")
GOLDEN = "1bb052486c35a96494f582657fa934f68e85102eb70434a4b54e4983f4a2bf39"

ALIKE: Mapping[str, dict[str, Any]] = {
    "another order": dict(reversed(CONFIG.items())),
    "another place": {**CONFIG, "_name_or_path": "/models/name", "_commit_hash": "abc"},
    "another version of transformers": {**CONFIG, "transformers_version": "5.1"},
    "the older name of the dtype": {**{k: v for k, v in CONFIG.items() if k != "dtype"}, "torch_dtype": "bfloat16"},
    "torch's name of the dtype": {**CONFIG, "dtype": "torch.bfloat16"},
    "what a call returns": {**CONFIG, "use_cache": False, "output_attentions": True},
}

OTHERS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rope theta": ({**CONFIG, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {}),
    "rope type": ({**CONFIG, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10_000.0}}, {}),
    "older key of rope": ({**CONFIG, "rope_theta": 10_000.0}, {}),
    "a key that is left out": ({key: value for key, value in CONFIG.items() if key != "sliding_window"}, {}),
    "a key that nobody knows": ({**CONFIG, "new": 1}, {}),
    "a number of another type": ({**CONFIG, "hidden_size": "64"}, {}),
    "dtype of the configuration": ({**CONFIG, "dtype": "float16"}, {}),
    "dtype": (CONFIG, {"dtype": "float16"}),
    "revision": (CONFIG, {"revision": "abd"}),
    "quantization": (CONFIG, {"quantization": "fp8"}),
    "quantization of the configuration": ({**CONFIG, "quantization_config": {"bits": 4}}, {}),
}


def test_a_fingerprint_is_the_same_on_every_machine() -> None:
    assert OWN == GOLDEN, f"STORE-1: pages that were stored by other processes are lost: expected {GOLDEN}, got {OWN}"


@pytest.mark.parametrize("config", ALIKE.values(), ids=ALIKE)
def test_what_does_not_change_kv_does_not_count(config: dict[str, Any]) -> None:
    found = fingerprint_of_model(config, revision="abc")
    assert found == OWN, f"expected {OWN}, got {found}"


@pytest.mark.parametrize(("config", "changes"), OTHERS.values(), ids=OTHERS)
def test_what_changes_kv_counts(config: dict[str, Any], changes: dict[str, Any]) -> None:
    found = fingerprint_of_model(config, **{"revision": "abc", **changes})
    assert found != OWN, "STORE-1: expected another fingerprint"


def test_a_file_and_its_folder_are_read_as_a_mapping_is(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    for place in (path, str(path), tmp_path):
        found = fingerprint_of_model(place, revision="abc")
        assert found == OWN, f"{place}: expected {OWN}, got {found}"
    with pytest.raises(ConfigurationError, match="nowhere"):
        fingerprint_of_model(tmp_path / "nowhere.json", revision="abc")


def test_what_is_no_identity_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="revision must be a text that names the weights, got ''"):
        fingerprint_of_model(CONFIG, revision="")
    with pytest.raises(ConfigurationError, match="JSON's values alone: Object of type"):
        fingerprint_of_model({**CONFIG, "path": Path()}, revision="abc")
