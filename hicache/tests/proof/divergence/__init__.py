"""Divergences of collectives that are injected into one rank of several: who names the rank and the call."""
