"""SGLang 0.5.23: what its parser of `--hicache-storage-backend-extra-config` accepts as a threshold or a timeout.

It needs SGLang alone, no GPU and no model. The last line is the comparison with which the policy `timeout` ends a
prefetch, with a timeout of NaN after a year.
"""

from __future__ import annotations

from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

TEXTS = (
    '{"prefetch_threshold": true}',
    '{"prefetch_threshold": -1}',
    '{"prefetch_timeout_base": -0.5}',
    '{"prefetch_timeout_per_ki_token": Infinity}',
    '{"prefetch_timeout_base": NaN}',
    '{"prefetch_threshold": 256.5}',
    "[1]",
)

for text in TEXTS:
    try:
        _, threshold, base_s, per_ki_token_s, _ = HybridCacheController.parse_storage_backend_extra_config(text)
        answer = f"threshold {threshold}, timeout {base_s} s and {per_ki_token_s} s for 1024 tokens"
    except (TypeError, ValueError) as error:
        answer = f"{type(error).__name__}: {error}"
    print(f"{text:45} {answer}")
timeout_s = float("nan")
print(f"a year is longer than NaN seconds: {timeout_s < 365 * 86400}")
