"""The contract across processes: one cache on each rank of a mesh, over gloo on CPUs or NCCL on GPUs."""
