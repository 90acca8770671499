"""ROWS: every mutant that a model can see, where its defect was seen, and the test of accuracy that finds it."""

from __future__ import annotations

from hicache.tests.proof.mutants.accuracy.prefixes import (
    DtypeUnnamed,
    FingerprintUnnamed,
    FreesWhatIsKept,
    HashesOfTokensAlone,
    HostAsDevice,
    NoCopy,
    NoWindowLock,
    OneNamespace,
    StateBefore,
)
from hicache.tests.proof.mutants.accuracy.transfers import (
    BlockIds,
    CountsFirst,
    DamageUnseen,
    FailedBackupTaken,
    FailedLoadTaken,
    IndexNotAwaited,
    LateBackups,
    LateIndex,
    LateLoads,
    LateSidecars,
    NoFence,
    OneBuffer,
    OneCounter,
    OnePageSize,
    SplitForgotten,
    TargetLayers,
    WaitsForNoLayer,
    WindowInPart,
)
from hicache.tests.proof.mutants.rows import Row

DEVICE = "test_families.py::test_the_device_answers_as_no_cache_would"
HOST = "test_families.py::test_the_host_answers_as_no_cache_would"
STORAGE = "test_families.py::test_storage_answers_as_no_cache_would"
CONCURRENT = "test_concurrent_requests.py::test_requests_that_run_together_answer_as_each_would_alone"
PARTED = "test_families.py::test_a_prompt_that_diverges_in_the_middle_answers_as_no_cache_would"
ALONE = "test_recovery.py::test_a_component_that_was_evicted_alone_is_loaded_back"
DAMAGED = "test_recovery.py::test_a_page_that_comes_back_with_other_bytes_is_computed_again"
FAILED = "test_recovery.py::test_tokens_whose_copy_failed_are_computed_again"
LORA = "test_namespaces.py::test_no_lora_is_answered_from_the_kv_of_another"
DTYPE = "test_namespaces.py::test_no_model_is_answered_from_stored_kv_of_another_dtype"
ROPE = "test_namespaces.py::test_no_model_is_answered_from_stored_kv_of_another_rope"

FROM_DEVICE, FROM_HOST, FROM_STORAGE = (
    rf"REQ-3: \d+ tokens from {tier}, and \d+ more: expected the logits of the cache that was never stored"
    for tier in ("device", "host", "storage")
)
APART = r"\S+ nats (a token )?from the answer without a cache"

ROWS = (
    Row(
        slug="index-is-not-waited-for",
        source="sglang#22811",
        clauses=("FLOW-2", "HOST-6"),
        adapter=LateIndex,
        test=f"{HOST}[deepseek_v32-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="a-reader-waits-for-no-layer",
        source="ours",
        clauses=("HOST-6",),
        adapter=WaitsForNoLayer,
        test=f"{HOST}[qwen3-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="no-fence-before-a-load",
        source="sglang#36738",
        clauses=("FLOW-1",),
        adapter=NoFence,
        test=f"{HOST}[qwen3-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="counted-before-it-is-read",
        source="sglang#9909",
        clauses=("FLOW-2",),
        adapter=CountsFirst,
        test=f"{STORAGE}[qwen3-float32]",
        told=FROM_STORAGE,
    ),
    Row(
        slug="done-before-it-is-copied",
        source="sglang#29819",
        clauses=("FLOW-2",),
        adapter=LateLoads,
        test=f"{HOST}[qwen3-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="one-buffer-for-all-jobs",
        source="TensorRT-LLM#15546",
        clauses=("FLOW-1",),
        adapter=OneBuffer,
        test=f"{HOST}[qwen3-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="host-page-for-device-page",
        source="TensorRT-LLM#13124",
        clauses=("HOST-7",),
        adapter=BlockIds,
        test=f"{HOST}[qwen3-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="one-page-size-for-all",
        source="vllm#55600",
        clauses=("HOST-7",),
        adapter=OnePageSize,
        test=f"{HOST}[qwen3_next-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="layers-of-the-target-alone",
        source="sglang#40223",
        clauses=("HOST-7",),
        adapter=TargetLayers,
        test=f"{HOST}[qwen3-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="one-counter-for-all-loads",
        source="sglang#7267",
        clauses=("FLOW-2",),
        adapter=OneCounter,
        test=f"{HOST}[qwen3-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="sidecars-after-the-acknowledgement",
        source="sglang#27550",
        clauses=("FLOW-2", "HOST-8"),
        adapter=LateSidecars,
        test=f"{HOST}[gemma3-float32]",
        told=FROM_HOST,
    ),
    Row(
        slug="gone-before-it-is-copied",
        source="ours",
        clauses=("FLOW-1", "HOST-3"),
        adapter=LateBackups,
        test=f"{CONCURRENT}[qwen3-float32-write_back]",
        told=APART,
    ),
    Row(
        slug="backup-that-failed",
        source="sglang#27108",
        clauses=("FLOW-3",),
        adapter=FailedBackupTaken,
        test=f"{FAILED}[backup-qwen3]",
        told=APART,
    ),
    Row(
        slug="load-that-failed",
        source="sglang#25088",
        clauses=("FLOW-3",),
        adapter=FailedLoadTaken,
        test=f"{FAILED}[load-qwen3]",
        told=APART,
    ),
    Row(
        slug="host-passes-for-device",
        source="sglang#25277",
        clauses=("MATCH-3",),
        adapter=HostAsDevice,
        test=f"{ALONE}[gemma3]",
        told=r"MATCH-3: the window of a hit",
    ),
    Row(
        slug="split-while-it-is-copied",
        source="sglang#16946",
        clauses=("INS-8",),
        adapter=SplitForgotten,
        test=f"{CONCURRENT}[qwen3-float32-write_through]",
        told=APART,
    ),
    Row(
        slug="kept-and-freed",
        source="sglang-jax#1618",
        clauses=("INS-1",),
        adapter=FreesWhatIsKept,
        test=f"{DEVICE}[qwen3-float32]",
        # The page is handed out twice, and the core refuses the second insert before a model reads it.
        told=r"of pages \[\d+\] some are the tree's at other places",
    ),
    Row(
        slug="window-without-a-lock",
        source="ours",
        clauses=("LOCK-1",),
        adapter=NoWindowLock,
        test=f"{CONCURRENT}[gemma3-float32-write_through]",
        told=r"MATCH-3: the window of a hit",
    ),
    Row(
        slug="state-of-another-prefix",
        source="ours",
        clauses=("REQ-3",),
        adapter=StateBefore,
        test=f"{DEVICE}[qwen3_next-float32]",
        told=FROM_DEVICE,
    ),
    Row(
        slug="state-that-two-write",
        source="ours",
        clauses=("REQ-3",),
        adapter=NoCopy,
        test=f"{PARTED}[qwen3_next]",
        told=APART,
    ),
    Row(
        slug="one-tree-for-all-loras",
        source="LMCache#2961",
        clauses=("KEY-2",),
        adapter=OneNamespace,
        test=f"{LORA}[device]",
        told=APART,
    ),
    Row(
        slug="hashes-of-tokens-alone",
        source="sglang#26747",
        clauses=("KEY-2",),
        adapter=HashesOfTokensAlone,
        test=f"{LORA}[storage]",
        told=APART,
    ),
    Row(
        slug="no-dtype-in-the-name",
        source="sglang#33268",
        clauses=("STORE-1",),
        adapter=DtypeUnnamed,
        test=DTYPE,
        told=APART,
    ),
    Row(
        slug="no-fingerprint-in-the-name",
        source="vllm#56311",
        clauses=("STORE-1",),
        adapter=FingerprintUnnamed,
        test=ROPE,
        told=APART,
    ),
    Row(
        slug="damage-is-not-seen",
        source="sglang#29969",
        clauses=("STORE-3",),
        adapter=DamageUnseen,
        test=f"{DAMAGED}[qwen3]",
        told=APART,
    ),
    Row(
        slug="index-that-did-not-come",
        source="sglang#30057",
        clauses=("FETCH-4", "STORE-3"),
        adapter=IndexNotAwaited,
        test=f"{DAMAGED}[deepseek_v32]",
        told=APART,
    ),
    Row(
        slug="part-of-a-window",
        source="sglang#27264",
        clauses=("FETCH-6",),
        adapter=WindowInPart,
        test=f"{DAMAGED}[gemma3]",
        told=APART,
    ),
)
