"""Adapters of mini-sglang and nano-vllm, which are read from a checkout."""
