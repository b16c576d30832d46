"""The rows of test/gpu/run for programs whose memory is VMM memory: PyTorch's expandable segments, JAX."""

from commands import HOOK, SMALL, feature, train

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
# XLA's own allocator holds one block, inside which the hook sees no buffers.
PLATFORM = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}

CORRECTNESS = [
    {
        "name": "expandable_segments",
        "managed_gib": 9,  # each of PyTorch's segments reserves 1.125 times the budget, and uses little of it
        "command": train(*SMALL, "--steps", "4"),
        "env": EXPANDABLE,
    },
    {
        "name": "JAX",
        "managed_gib": 3.25,
        "command": feature("jax"),
        # XLA's own allocator takes three quarters of the memory that it sees, however much of it can be exceeded.
        "hooked_env": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "4"},
    },
]

BENCHMARKS = [
    {
        "name": "expandable segments, d=512 that fits",
        "command": train(*SMALL, "--steps", "120"),
        "rounds": 3,
        "figure": "step",
        "skip": 20,
        "variants": {
            "default segments": {**HOOK, "budget": 3 << 30},
            "expandable segments": {**HOOK, "budget": 3 << 30, "env": EXPANDABLE},
        },
        "ratio": ("expandable segments", "default segments"),
        "goal": "<= 1.02",
        "at_most": 1.02,
    },
    {
        "name": "expandable segments, d=2048 at 0.6 of its live bytes",
        "command": train("transformer", "--steps", "14"),
        "rounds": 2,
        "figure": "step",
        "skip": 7,
        "variants": {
            "default segments": {**HOOK, "budget": 3600 << 20},
            "expandable segments": {**HOOK, "budget": 3600 << 20, "env": EXPANDABLE},
        },
        "ratio": ("expandable segments", "default segments"),
        "goal": "<= 1.1",
        "at_most": 1.1,
        "evicts": True,
    },
    {
        "name": "JAX training that fits",
        "command": feature("jax_training"),
        "rounds": 2,
        "figure": "step",
        "skip": 4,
        "variants": {
            "unhooked": {},
            "hooked": {**HOOK, "budget": 6 << 30},
            "unhooked, platform": {"env": PLATFORM},
            "hooked, platform": {**HOOK, "budget": 6 << 30, "env": PLATFORM},
        },
        "ratio": ("hooked", "unhooked"),
        "goal": "<= 1.02",
        "at_most": 1.02,
    },
    {
        "name": "JAX training at 0.6 of its live bytes",
        "command": feature("jax_training"),
        "rounds": 1,
        "figure": "step",
        "skip": 4,
        "live": "jax_training",
        "variants": {
            "faults": {**HOOK, "fraction": 0.6, "env": {**PLATFORM, "SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "fraction": 0.6, "env": PLATFORM},
            "sluice, XLA's own allocator": {
                **HOOK,
                "fraction": 0.6,
                "env": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "4"},
            },
        },
        "ratio": ("faults", "sluice"),
        "goal": ">= 3",
        "at_least": 3,
        "evicts": True,
    },
]
