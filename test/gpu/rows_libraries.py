"""Correctness rows of test/gpu/run: features of libraries as their users have them (workloads/library_features.py)."""

from commands import PYTHON
from rows_changing import ASYNC


def _row(name, program, managed_gib=3.25, **more):
    command = [PYTHON, "test/gpu/workloads/library_features.py", program]
    return {"name": f"library: {name}", "managed_gib": managed_gib, "command": command, **more}


def _jax(allocator):
    return {"XLA_PYTHON_CLIENT_ALLOCATOR": allocator}


LIBRARIES = [
    _row("reduce-overhead training, several shapes", "graph_trees", 4.5),
    _row("generate of transformers", "generate"),
    _row("pools of PyTorch, one by an own allocator", "mem_pools"),
    _row("cudaMallocAsync, streams and trim", "async_pool", env=ASYNC),
    _row(
        "cudaMallocAsync in a fraction of the GPU",
        "async_fraction",
        env=ASYNC,
        modes=("full",),
        why="the program sees the budget as its GPU, and takes no more than its fraction of that",
    ),
    _row("batches by workers, pinned", "loader"),
    _row("graphed callables, graphs in one pool", "graph_pool", 4.5),
    _row("optimizer and activations in host memory", "offload", 4.5),
    _row("checkpoints", "checkpoint", 4.5),
    _row("sparse, cuSOLVER, cuFFT", "numerics", 4.5),
    _row("attention by three kernels", "attention", 4.5),
    _row("CuPy's pools, and PyTorch", "cupy_pools", 4.5),
    _row("JAX offloading, platform allocator", "jax_offload", 3.25, env=_jax("platform")),
    _row("JAX offloading, cuda_async allocator", "jax_offload", 3.25, env=_jax("cuda_async")),
    _row("Triton's tuning, and atomics", "triton_tuned"),
    _row("spawned children, each a context", "children", 2, processes=3),
    _row("tensors freed by another thread", "freed_elsewhere"),
    _row("8-bit products", "low_precision"),
    _row("mixed precision, fused optimizer", "mixed_precision", 4.5),
]
