"""Features of libraries as their users have them: library_features.py NAME. Memory of 1 to 3 GiB; all values repeat."""

import ctypes
import os
import queue as queue_module
import shutil
import subprocess
import sys
import tempfile
import threading

import library_compute
from jax_programs import jax_bytes, open_jax
from library_tools import bits, deep, finish, randn

from common import result, seeded_torch, skip

MIB = 1 << 20


PLUGGED = """
#include <stddef.h>
#include <sys/types.h>
int cuMemAlloc_v2(unsigned long long*, size_t);
int cuMemFree_v2(unsigned long long);
void* take(ssize_t size, int device, void* stream) {
  unsigned long long at = 0;
  return cuMemAlloc_v2(&at, (size_t)size) == 0 ? (void*)at : NULL;
}
void give(void* at, ssize_t size, int device, void* stream) { cuMemFree_v2((unsigned long long)at); }
"""


def plugged_allocator(torch, folder):
    """An allocator of the user's own: a library in C that PyTorch calls."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        skip("no C compiler here")
    ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)  # for its undefined symbols
    path = os.path.join(folder, "plugged.so")
    command = [compiler, "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
    subprocess.run(command, input=PLUGGED, text=True, check=True)
    return torch.cuda.memory.CUDAPluggableAllocator(path, "take", "give")


def mem_pools():
    """Pools of PyTorch, one by an own allocator, used in turn with the default one; history and snapshots."""
    torch = seeded_torch()
    with tempfile.TemporaryDirectory() as folder:
        allocator = plugged_allocator(torch, folder)
        torch.cuda.memory._record_memory_history(max_entries=1000)
        values, kept = [], [randn(torch, 32 * MIB) for _ in range(3)]
        for turn in range(3):
            own, plugged = torch.cuda.MemPool(), torch.cuda.MemPool(allocator.allocator())
            with torch.cuda.use_mem_pool(own):
                first = [randn(torch, 32 * MIB) for _ in range(4)]
            with torch.cuda.use_mem_pool(plugged):
                second = [part * 2 for part in first]
                scratch = second[0] + 1
                del scratch
                second[1] = second[1] - second[0]
            for part, other in zip(kept, second):
                part.add_(other)
            values += [len(own.snapshot()) > 0, torch.cuda.memory_allocated(), *bits(*first, *second)]
            torch.cuda.reset_peak_memory_stats()
            del first, second, part, other
            torch.cuda.synchronize()
            del own, plugged
            torch.cuda.empty_cache()
            values += [len(torch.cuda.memory.memory_snapshot()) > 0, torch.cuda.memory_allocated(), turn]
        torch.cuda.memory._dump_snapshot(os.path.join(folder, "snapshot.pickle"))
        torch.cuda.memory._record_memory_history(enabled=None)
        finish(torch, [*values, *bits(*kept)])


def async_pool(fraction=None):
    """Stream-ordered memory (row's variable: backend cudaMallocAsync): streams and trim."""
    torch = seeded_torch()
    if torch.cuda.get_allocator_backend() != "cudaMallocAsync":
        sys.exit("library_features.py async_pool: PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync is missing")
    if fraction:
        torch.cuda.set_per_process_memory_fraction(fraction)
    driver, pool = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    streams = [torch.cuda.Stream() for _ in range(3)]
    main = torch.cuda.current_stream()
    kept = [randn(torch, 4096, 4096) for _ in range(16)]
    values = []
    for turn in range(4):
        for i, stream in enumerate(streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                for j in range(i, len(kept), 3):
                    product = kept[j] @ kept[(j + 3) % len(kept) if (j + 3) < len(kept) else i]
                    moved = product / 64
                    moved.record_stream(main)
                    kept[j].record_stream(stream)
                    kept[j] = moved
        for stream in streams:
            main.wait_stream(stream)
        extra = [part.double() for part in kept[turn : turn + 3]]
        values += bits(*extra)
        del extra, product, moved
        torch.cuda.empty_cache()
        assert driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0) == 0
        assert driver.cuMemPoolTrimTo(pool, ctypes.c_size_t(64 * MIB)) == 0
    finish(torch, [*values, *bits(*kept)])


def async_fraction():
    """The same, and PyTorch refuses what exceeds a fraction of the memory that it sees: the program's own limit."""
    async_pool(0.9)


class Batches:
    """A data set whose items workers make, each from its number."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        import torch

        return torch.randn(256, 4096, generator=torch.Generator().manual_seed(index)), index


def loader():
    """Batches by workers, pinned, copied on a side stream while the last one is trained with."""
    torch = seeded_torch()
    model = deep(torch, 8, 4096).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    batches = iter(torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=2, pin_memory=True))

    def fetch():
        host, index = next(batches, (None, 0))
        if host is None:
            return None
        with torch.cuda.stream(side):
            card = host.cuda(non_blocking=True)
        event = torch.cuda.Event()
        event.record(side)
        return card, event, index

    losses, after = [], fetch()
    while after is not None:
        (x, event, index), after = after, fetch()
        main.wait_event(event)
        x.record_stream(main)
        loss = (model(x) - x).square().mean() + index
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().to("cpu", non_blocking=True))
    torch.cuda.synchronize()
    finish(torch, [float(x) for x in losses] + bits(*model.parameters()))


def offload():
    """Activations saved in pinned host memory, and the optimizer's state there between the steps."""
    torch = seeded_torch()
    from models import Transformer

    model = Transformer(1024, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    x, losses, homes = randn(torch, 2, 512, 1024), [], {}

    def move(home):
        for parameter, state in optimizer.state.items():
            for name in ("exp_avg", "exp_avg_sq"):
                if home == "cuda":
                    state[name] = state[name].to("cuda", non_blocking=True)
                    continue
                key = (parameter, name)
                if key not in homes:
                    homes[key] = torch.empty(state[name].shape, pin_memory=True)
                state[name] = homes[key].copy_(state[name], non_blocking=True)

    for _ in range(4):
        optimizer.zero_grad(set_to_none=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = (model(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        move("cuda")
        optimizer.step()
        move("cpu")
        losses.append(float(loss.detach()))
    finish(torch, losses + bits(*model.parameters()))


def checkpoint():
    """A checkpoint saved from the GPU and loaded onto it: whole, mapped, as the parameters, as safetensors."""
    torch = seeded_torch()
    model = deep(torch, 10, 4096).cuda()
    values = bits(*model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save({"model": model.state_dict(), "step": 3, "random": torch.cuda.get_rng_state()}, path)
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        for options in ({}, {"mmap": True}):
            loaded = torch.load(path, map_location="cuda", weights_only=True, **options)
            values += [loaded["step"], *bits(*loaded["model"].values())]
            model.load_state_dict(loaded["model"])
            values += bits(model(randn(torch, 256, 4096)).detach())
            del loaded
        host = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        empty = deep(torch, 10, 4096, device="meta")
        empty.load_state_dict(host["model"], assign=True)
        model = empty.cuda()
        torch.cuda.set_rng_state(host["random"])
        values += bits(model(randn(torch, 256, 4096)).detach())
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            pass
        else:
            path = os.path.join(folder, "model.safetensors")
            save_file(model.state_dict(), path)
            values += bits(*load_file(path, device="cuda").values())
    finish(torch, values)


def cupy_pools():
    """CuPy's pools (own, managed, stream-ordered), streams, raw kernels, pinned memory, and tensors of PyTorch's."""
    torch = seeded_torch()
    try:
        import cupy as cp
        import cupyx
    except ImportError as error:
        skip(f"no CuPy here: {error}")
    source = """extern "C" __global__ void mix(float* x, const float* y, long long n) {
      long long step = (long long)gridDim.x * blockDim.x;
      for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += step)
        x[i] = x[i] * 0.5f + y[i];
    }"""
    mix, count = cp.RawKernel(source, "mix"), 24 * MIB
    values, live = [], 0
    generator = cp.random.RandomState(5)
    pools = (cp.cuda.MemoryPool(), cp.cuda.MemoryPool(cp.cuda.malloc_managed), cp.cuda.MemoryAsyncPool())
    for pool in pools:
        cp.cuda.set_allocator(pool.malloc)
        parts = [generator.standard_normal(count, dtype=cp.float32) for _ in range(12)]
        pinned = cupyx.empty_pinned(count, dtype="float32")
        streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
        cp.cuda.Device().synchronize()
        for turn in range(3):
            for i, part in enumerate(parts):
                with streams[i % 2]:
                    mix((264,), (512,), (part, parts[(i + 2) % 12], cp.int64(count)))
            for i, stream in enumerate(streams):
                with stream:
                    parts[i + 2 * turn].get(out=pinned, stream=stream)
                    stream.synchronize()
                    parts[i + 6].set(pinned, stream=stream)
                    stream.synchronize()
            event = streams[0].record()
            streams[1].wait_event(event)
            streams[1].synchronize()
        # PyTorch takes no DLPack of managed memory.
        view = torch.from_dlpack if pool is not pools[1] else lambda part: torch.as_tensor(part, device="cuda")
        seen = view(parts[0])
        seen.mul_(2)
        torch.cuda.synchronize()
        back = cp.from_dlpack(torch.sin(seen)) * 2
        cp.cuda.Device().synchronize()
        live = max(live, len(parts) * count * 4)
        values += bits(*(view(part) for part in [*parts, back]))
        del seen, back, part, parts
        pool.free_all_blocks()
    result(values, live)


def jax_offload():
    """Scan, donated buffers, and blocks that wait in the host's memory; the row's variable names XLA's allocator."""
    j, jnp = open_jax()
    import numpy

    def layer(x, w):
        return jnp.tanh(x @ w), (x[0, :8] ** 2).sum()

    step = j.jit(lambda w, x: j.lax.scan(layer, x, w))
    update = j.jit(lambda w, g: w * 0.999 + g * 1e-3, donate_argnums=0)
    keys = j.random.split(j.random.PRNGKey(3), 17)
    blocks = [j.random.normal(k, (4, 2048, 2048)) / 45 for k in keys[:16]]
    x = j.random.normal(keys[16], (2048, 2048))
    card, values = x.sharding, []
    host = card.with_memory_kind("pinned_host")
    peak = jax_bytes(j, [*blocks, x])
    for turn in range(4):
        waiting = [j.device_put(block, host) for block in blocks[turn::4]]
        blocks[turn::4] = [j.device_put(block, card) for block in waiting]
        for i, block in enumerate(blocks):
            x, sums = step(block, x)
            blocks[i] = update(block, jnp.broadcast_to(x, block.shape))
            values.append(float(sums.sum()))
    x = numpy.asarray(x)
    values += [int(numpy.asarray(block).view(numpy.int32).sum(dtype=numpy.int64)) for block in blocks]
    result(values + [int(x.view(numpy.int32).sum(dtype=numpy.int64))], peak)


def child(number, answers):
    torch = seeded_torch(number)
    parts = [randn(torch, 4096, 4096) for _ in range(18)]
    for _ in range(3):
        for i in range(len(parts)):
            parts[i] = parts[i] @ parts[(i + 1) % len(parts)] / 64
    answers.put((number, bits(*parts), torch.cuda.max_memory_allocated()))


def children():
    """Two spawned processes and their parent, each with a context of its own at the same time."""
    torch = seeded_torch()
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    answers = context.Queue()
    running = [context.Process(target=child, args=(n, answers)) for n in (1, 2)]
    [process.start() for process in running]
    own = queue_module.SimpleQueue()
    child(0, own)
    got = sorted([own.get(), answers.get(timeout=50), answers.get(timeout=50)])
    [process.join(20) for process in running]
    torch.cuda.synchronize()
    values = [value for number, sums, _ in got for value in (number, *sums)]
    result(values + [process.exitcode for process in running], got[0][2])


def freed_elsewhere():
    """Inference by threads with own streams; another thread on its own stream reads and frees what they made."""
    torch = seeded_torch()
    models = [deep(torch, 4, 4096, dtype=torch.bfloat16).cuda() for _ in range(3)]
    made, sums, errors = queue_module.Queue(maxsize=2), {}, []

    def work(i):
        try:
            generator = torch.Generator("cuda").manual_seed(i)
            with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(12):
                    x = torch.randn(8192, 4096, device="cuda", generator=generator, dtype=torch.bfloat16)
                    y, event = models[i](x), torch.cuda.Event()
                    event.record()
                    made.put((i, turn, y, event))
                    del x, y
        except Exception as error:  # reported by the main thread
            errors.append(repr(error))
        made.put(None)

    def take():
        left, stream = len(models), torch.cuda.Stream()
        with torch.inference_mode(), torch.cuda.stream(stream):
            while left > 0:
                item = made.get()
                if item is None:
                    left -= 1
                    continue
                i, turn, y, event = item
                stream.wait_event(event)
                y.record_stream(stream)
                sums[i, turn] = (y.float() * (turn + 1)).sum(dtype=torch.float64)
                del y, item
        stream.synchronize()

    torch.cuda.synchronize()
    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)] + [threading.Thread(target=take)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    if errors:
        sys.exit("; ".join(errors))
    # Its peak depends on how far the threads run ahead of each other.
    result([float(sums[key]) for key in sorted(sums)], 1200 * MIB)


if __name__ == "__main__":
    memory = (mem_pools, async_pool, async_fraction, loader, offload, checkpoint, children, freed_elsewhere)
    names = {f.__name__: f for f in (*memory, cupy_pools, jax_offload, *library_compute.PROGRAMS)}
    if len(sys.argv) != 2 or sys.argv[1] not in names:
        sys.exit(f"library_features.py: NAME is missing or unknown; accepted: {', '.join(names)}")
    names[sys.argv[1]]()
