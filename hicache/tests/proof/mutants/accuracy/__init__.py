"""Caches that give a model other bytes, or another prefix, than it computed: one defect each."""
