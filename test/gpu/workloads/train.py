"""Training, decoding, inference by a CUDA graph, two models in turn: train.py MODEL [options].

Prints losses, live bytes and step times.
"""

import argparse
import contextlib
import random
import time

import host_pace

from common import START, result, seeded_torch, skip, timed_steps


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=sorted(MODELS))
    p.add_argument(
        "--width", type=int, default=0, help="default: 2048; of a convnet, whose channels double thrice, 128"
    )
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--lengths", default="", help="of a transformer: FROM-TO, another length in each step")
    p.add_argument("--steps", type=int, default=6)
    p.add_argument(
        "--mark",
        action="store_true",
        help="tell the recorder where steps begin (an NVTX range, and our own preload's function)",
    )
    p.add_argument("--compile", default="", help="default, reduce-overhead")
    p.add_argument("--graphs", action="store_true", help="make_graphed_callables around each layer")
    p.add_argument("--profile", action="store_true")
    p.add_argument(
        "--host-pace", action="store_true", help="after the steps, how fast this host makes launches (host_pace.py)"
    )
    a = p.parse_args()
    a.width = a.width or (128 if a.model == "convnet" else 2048)
    return a


def marker(on):
    """The preloaded recorder's own entry point, if there is one (test/gpu/truth, sluice's engine)."""
    if not on:
        return lambda name: None
    import ctypes

    try:
        f = ctypes.CDLL(None).sluice_truth_step
    except AttributeError:
        return lambda name: None
    return lambda name: f(name.encode())


def transformer(torch, a):
    from models import Transformer

    model = Transformer(a.width, a.layers).to("cuda", torch.bfloat16)
    shortest, longest = map(int, a.lengths.split("-")) if a.lengths else (a.length, a.length)
    lengths = random.Random(7)
    x_all = torch.randn(a.batch, longest, a.width, device="cuda", dtype=torch.bfloat16)
    y_all = torch.randn_like(x_all)
    if a.graphs:
        sample = (torch.randn_like(x_all).requires_grad_(),)
        model.layers = torch.nn.ModuleList(torch.cuda.make_graphed_callables(tuple(model.layers), (sample,) * a.layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    run = torch.compile(model, mode=None if a.compile == "default" else a.compile) if a.compile else model

    def step():
        length = lengths.randint(shortest, longest) if a.lengths else longest
        x, y = (x_all, y_all) if length == longest else (t[:, :length].contiguous() for t in (x_all, y_all))
        optimizer.zero_grad(set_to_none=not a.graphs)
        source = x.detach().requires_grad_() if a.graphs else x
        loss = (run(source) - y).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def convnet(torch, a):
    from models import convnet as make

    model = make(width=a.width).to("cuda", memory_format=torch.channels_last)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = True
    x = torch.randn(a.batch, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (a.batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    run = torch.compile(model) if a.compile else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def decode(torch, a):
    from models import Llama

    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Llama(d=a.width, layers=a.layers, batch=a.batch)
        torch.set_default_dtype(torch.float32)
    state = {"at": 0, "token": torch.arange(a.batch, device="cuda")}
    run = torch.compile(model) if a.compile else model

    def step():
        with torch.no_grad():
            logits = run(state["token"], state["at"])
        state["token"] = logits.argmax(-1)
        state["at"] += 1
        return logits.float().sum()

    return step


def inference(torch, a):
    """The transformer's forward pass as one CUDA graph."""
    from models import Transformer

    # Loads weights as servers do, by copies from the host. Deterministic mode would first fill the tensors by a kernel.
    torch.utils.deterministic.fill_uninitialized_memory = False
    model = Transformer(a.width, a.layers).to(torch.bfloat16).to("cuda").eval()
    x = torch.randn(a.batch, a.length, a.width, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            y = model(x)

    # A graph does not keep the tensors that it was captured with: without `kept` they would be freed and overwritten.
    def step(kept=(model, x)):
        graph.replay()
        return y.float().square().mean()

    return step


def turns(torch, a):
    """Four steps of a model's training, then eight forward passes of a deeper one: 6 GiB live in all."""
    from models import Transformer

    train = transformer(torch, argparse.Namespace(**{**vars(a), "layers": 8}))
    other = Transformer(a.width, 24).to("cuda", torch.bfloat16).eval()
    x = torch.randn(a.batch, a.length, a.width, device="cuda", dtype=torch.bfloat16)

    def step():
        loss = sum(train() for _ in range(4))
        with torch.no_grad():
            return loss + sum(other(x).float().square().mean() for _ in range(8))

    return step


MODELS = {
    "transformer": transformer,
    "convnet": convnet,
    "decode": decode,
    "inference": inference,
    "turns": turns,
}


def main():
    a = arguments()
    torch = seeded_torch()
    begin = time.monotonic()
    try:
        step = MODELS[a.model](torch, a)
    except ImportError as error:
        skip(f"{error}")
    torch.cuda.synchronize()
    loaded = time.monotonic() - begin
    mark = marker(a.mark)
    profile = (
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], profile_memory=True
        )
        if a.profile
        else contextlib.nullcontext()
    )
    count = [0]

    def marked():
        mark(f"step {count[0]}")
        count[0] += 1
        return step()

    begin = time.monotonic()
    with profile:
        first, first_ms = timed_steps(torch, marked, 1)
        first_s = time.monotonic() - begin
        values, times = timed_steps(torch, marked, a.steps - 1)
    more = {}
    if a.profile:
        more["profiled_kernels"] = sum(1 for e in profile.events() if str(e.device_type).endswith("CUDA"))
    live, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    if a.host_pace:
        more["host_us"] = host_pace.microseconds(torch)
    result(
        first + values,
        live,
        first_ms + times,
        load_s=loaded,
        first_step_s=first_s,
        reserved_bytes=reserved,
        until_first_step_s=begin - START + first_s,
        parameters=0,
        **more,
    )


main()
