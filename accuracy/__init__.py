"""Tests of the contract with language models: tiny models of real architectures answer from every tier."""
