"""The contract across processes: one cache on each rank of a mesh, by gloo on CPUs or by NCCL on GPUs."""
