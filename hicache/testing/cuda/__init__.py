"""A model of CUDA on the CPU. Work runs in any order that CUDA allows; each access is checked against the others."""
