"""Rows of test/gpu/run: programs whose launches do not repeat, and training as its users' libraries do it."""

ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}


def _row(name, command, skip, goal, tight, env=None):
    """`tight`: the budget of the hooked variants, as `budget` or as `live` and `fraction`."""
    live = {"live": tight.pop("live")} if "live" in tight else {}
    env = env or {}
    return {
        "name": name,
        "command": command,
        "rounds": 1,
        "figure": "step",
        "skip": skip,
        **live,
        "variants": {
            "unhooked": {"env": env},
            "faults": {**tight, "env": {**env, "SLUICE_PREFETCH": "off"}},
            "sluice": {**tight, "env": env},
        },
        "ratio": ("faults", "sluice"),
        "goal": goal,
        "evicts": True,
    }


def changing_rows(python, hook, train):
    libraries = [python, "test/gpu/workloads/libraries.py"]

    def part(of):
        return {**hook, "live": of, "fraction": 0.6}

    return [
        _row(
            "training with another length in each step, 4 GiB budget",
            train("transformer", "--lengths", "160-512", "--steps", "30"),
            12,
            "<= 290 ms",
            {**hook, "budget": 4 << 30},
        ),
        _row(
            "two models in turn, 4 GiB budget",
            train("turns", "--steps", "10"),
            4,
            "<= 450 ms",
            {**hook, "budget": 4 << 30},
        ),
        _row("HF Trainer at 0.6 of its live bytes", [*libraries, "trainer"], 8, "<= 60 ms", part("trainer")),
        _row(
            "HF Trainer, cudaMallocAsync, at 0.6 of its live bytes",
            [*libraries, "trainer"],
            8,
            "<= 80 ms",
            part("trainer"),
            ASYNC,
        ),
        {
            "name": "HF Trainer, cudaMallocAsync, that fits",
            "command": [*libraries, "trainer"],
            "rounds": 2,
            "figure": "step",
            "skip": 8,
            "variants": {"unhooked": {"env": ASYNC}, "sluice": {**hook, "budget": 8 << 30, "env": ASYNC}},
            "ratio": ("sluice", "unhooked"),
            "goal": "<= 1.02",
            "at_most": 1.02,
        },
        _row("ResNet-50 of timm at 0.6 of its live bytes", [*libraries, "resnet"], 8, "<= 90 ms", part("resnet")),
    ]
