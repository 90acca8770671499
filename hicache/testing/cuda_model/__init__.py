"""A model of CUDA on the CPU: its order of work is any that CUDA allows, and each access is checked against the others."""
