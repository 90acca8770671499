"""Proof that the suites find defects: broken caches, each found by the test that is named for it, and attacks."""
