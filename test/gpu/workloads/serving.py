"""One inference server and its clients: serving.py --engine own|transformers|llama|mock [options].

Loads a model of 1.24 billion random parameters, prints `READY {...}` and obeys lines of stdin:

    {"at_once": N, "seconds": S, "begin": T}   N clients, each with one request at a time, for S seconds behind
                                               CLOCK_MONOTONIC T + the warm-up; prints `LEVEL {...}`
    {"one": true}                              one request alone; prints `ONE {...}`
    quit, or the end of stdin                  ends

Prompts and outputs have one length each, eight to one, and no prompt is cached, as in NVIDIA's measurement of its GPU
fractions.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import sys
import time

WARM_UP_S = 0.7
PROMPTS = 64


def say(word, **fields):
    print(word, json.dumps(fields), flush=True)


class Clients:
    """A closed loop: each client sends its next request when its last one ended. The first request of each is shorter,
    so that they do not stay in step."""

    def __init__(self, engine, prompt, output):
        numbers = random.Random(11)
        tokens = range(engine.lowest_token, engine.vocabulary)
        self.prompts = [[numbers.choice(tokens) for _ in range(prompt)] for _ in range(PROMPTS)]
        self.engine, self.output, self.used = engine, output, 0

    def submit(self, output):
        self.engine.submit(self.used, self.prompts[self.used % PROMPTS], output)
        self.used += 1

    def level(self, at_once, seconds, begin):
        self.engine.prepare(at_once)
        self.used = 0
        while time.monotonic() < begin:
            time.sleep(0.001)
        for i in range(at_once):
            self.submit(max(1, self.output * (i + 1) // at_once))
        begin, end = begin + WARM_UP_S, begin + WARM_UP_S + seconds
        ended, left = [], at_once
        while left:
            for request in self.engine.poll():
                ended.append(request)
                if time.monotonic() < end:
                    self.submit(self.output)
                else:
                    left -= 1
        # The first prompts all come at once, before the measured time.
        first = [1e3 * (times[0] - arrived) for _, arrived, times, _ in ended if begin <= arrived and times[0] < end]
        return {
            "at_once": at_once,
            "seconds": seconds,
            "tokens": sum(begin <= t < end for _, _, times, _ in ended for t in times),
            "all_tokens": sum(len(times) for _, _, times, _ in ended),
            "first_ms": [round(x, 3) for x in sorted(first)],
            "between_ms": between(ended, begin, end),
            **values([r for r in ended if r[0] >= at_once]),
        }

    def one(self):
        """The first prompt, alone."""
        self.engine.prepare(1)
        self.used = 0
        self.submit(self.output)
        while True:
            for _, arrived, times, digest in self.engine.poll():
                gaps = [1e3 * (b - a) for a, b in itertools.pairwise(times)]
                return {
                    "first_ms": round(1e3 * (times[0] - arrived), 3),
                    "slowest_gap_ms": round(max(gaps, default=0.0), 3),
                    "digest": digest,
                }


def values(ended):
    """Of whole answers: a digest of each prompt's, and the prompts whose answers differed."""
    digests, differing = {}, set()
    for number, _, _, digest in ended:
        prompt = str(number % PROMPTS)
        if digests.setdefault(prompt, digest) != digest:
            differing.add(prompt)
    return {"digests": digests, "differing": sorted(differing)}


def between(ended, begin, end):
    """The median time between two tokens of a request."""
    gaps = sorted(b - a for _, _, times, _ in ended for a, b in itertools.pairwise(times) if begin <= b < end)
    return round(1e3 * gaps[len(gaps) // 2], 3) if gaps else None


def serve(a, engine, torch, begin):
    """Until the end of stdin."""
    clients = Clients(engine, a.prompt, a.output)
    alone = clients.one()
    live = torch.cuda.memory_reserved() if torch and a.device == "cuda" else engine.weight_bytes + engine.cache_bytes
    say(
        "READY",
        pid=os.getpid(),
        weight_bytes=engine.weight_bytes,
        cache_bytes=engine.cache_bytes,
        live_bytes=live,
        deterministic=engine.deterministic,
        until_ready_s=round(time.monotonic() - begin, 2),
        alone=alone,
    )
    for line in sys.stdin:
        if line.strip() in ("quit", ""):
            break
        order = json.loads(line)
        if "one" in order:
            say("ONE", **clients.one())
        else:
            say("LEVEL", **clients.level(order["at_once"], order["seconds"], order["begin"]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--engine", choices=("own", "transformers", "llama", "mock"), default="own")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--tiny", action="store_true", help="a model for tests on a CPU")
    p.add_argument("--batches", default="1", help="numbers of requests at once that will be asked for, as 1,4,16")
    p.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt")
    p.add_argument("--output", type=int, default=128, help="tokens of each answer")
    size = p.add_mutually_exclusive_group(required=True)
    size.add_argument("--cache-mib", type=int, help="size of the KV cache")
    size.add_argument("--live-mib", type=int, help="size of weights and KV cache together")
    p.add_argument(
        "--reuse", choices=("last", "first"), default="last", help="the freed page of the cache that is used next"
    )
    a = p.parse_args()
    begin = time.monotonic()
    torch = None
    if a.engine in ("own", "transformers"):
        import torch

        if a.device == "cuda" and not torch.cuda.is_available():
            sys.exit("serving: torch.cuda is not available")
    engine = importlib.import_module(f"serving_{a.engine}").Engine(
        torch,
        a.device,
        a.tiny,
        sorted({1, *map(int, a.batches.split(","))}),
        a.prompt + a.output,
        cache_bytes=(a.cache_mib or 0) << 20,
        live_bytes=(a.live_mib or 0) << 20,
        reuse=a.reuse,
    )
    try:
        serve(a, engine, torch, begin)
    finally:  # a child of the engine must not survive an error
        engine.close()


main()
