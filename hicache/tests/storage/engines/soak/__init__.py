"""Processes whose caches share one engine that evicts, for minutes: each byte that is read is compared."""
