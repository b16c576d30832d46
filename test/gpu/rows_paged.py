"""Rows of test/gpu/run: inference servers with paged caches (workloads/paged.py) and mixtures of experts (moe.py).

Weights of 1.6 GiB, a cache of 4 GiB, a budget of 4 GiB. The touched chunks of the first rows fit the budget. With half
of the pages in use, strewn over all chunks, 1.6 GiB do not fit; half of that is read over the link.
"""

# --pages, in words, as a graph, goal
PAGES = (
    ("first", "the first twelfth", True, "<= 1.05"),
    ("first", "the first twelfth", False, "<= 1.05"),
    ("churn", "pages of sequences that begin and end", False, "<= 1.05"),
    ("strewn", "half of the pages", True, "<= 1.25 of the link's bound"),
    ("strewn", "half of the pages", False, "<= 1.25 of the link's bound"),
)


def paged_rows(python, hook):
    budget = {**hook, "budget": 4 << 30}
    return [
        {
            "name": f"paged cache of 4 GiB, {words} in use{', a graph' if graph else ''}",
            "command": [python, "test/gpu/workloads/paged.py", "--pages", pages, *(["--graph"] if graph else [])],
            "rounds": 1,
            "figure": "step",
            "skip": 0,
            "variants": {
                "unhooked": {},
                "all that is named counts as touched": {**budget, "env": {"SLUICE_LEARN": "0"}},
                "sluice": budget,
            },
            "ratio": ("sluice", "unhooked"),
            "goal": goal,
            "evicts": True,
        }
        for pages, words, graph, goal in PAGES
    ]


def expert_rows(python, hook):
    """Experts of 3.4 GiB in a budget of 2.6 GiB: the popular ones of each layer fit."""
    return [
        {
            "name": f"mixture of experts, {words}",
            "command": [python, "test/gpu/workloads/moe.py", *options],
            "rounds": 1,
            "figure": "step",
            "skip": 0,
            "variants": {
                "unhooked": {},
                "faults": {**hook, "budget": 2600 << 20, "env": {"SLUICE_PREFETCH": "off"}},
                "sluice": {**hook, "budget": 2600 << 20},
            },
            "ratio": ("sluice", "unhooked"),
            "goal": goal,
            "evicts": True,
        }
        for words, options, goal in (
            ("a loop over the experts", [], "<= 1.1"),
            ("a grouped product by a table on the GPU", ["--grouped"], "<= 1.3"),
        )
    ]
