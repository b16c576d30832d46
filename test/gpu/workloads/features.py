"""One feature of a framework or program that a hook may break: features.py NAME."""

import ctypes
import os
import queue as queue_module
import struct
import sys
import threading
import time

from jax_programs import jax, jax_training

from common import result, seeded_torch, skip, timed_steps


def threads():
    """Four threads, each with its own stream, each over its own tensors."""
    torch = seeded_torch()
    sums = [0.0] * 4

    def work(i):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            generator = torch.Generator("cuda").manual_seed(i)
            parts = [torch.randn(4096, 4096, device="cuda", generator=generator) for _ in range(5)]
            for _ in range(3):
                for j in range(5):
                    parts[j] = (parts[j] @ parts[(j + 1) % 5]) / 64
            sums[i] = float(torch.stack([p.double().sum() for p in parts]).sum())
        stream.synchronize()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    result(sums, torch.cuda.max_memory_allocated())


def fork():
    """A child forked before the first use of CUDA computes; one forked after it ends without using CUDA."""
    pid = os.fork()
    if pid == 0:
        torch = seeded_torch()
        x = torch.ones(1 << 20, device="cuda")
        os._exit(0 if float(x.sum()) == 1 << 20 else 3)
    before = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    torch = seeded_torch()
    x = torch.randn(1 << 28, device="cuda")
    first = float(x.double().sum())
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    after = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    y = x * 2
    result([before, after, first, float(y.double().sum())], torch.cuda.max_memory_allocated())


def oom():
    """Allocations beyond the limit get CUDA's out-of-memory error; after a free, the framework's retry works."""
    torch = seeded_torch()
    kept, refused = [], 0
    limit = int(os.environ.get("SLUICE_TEST_OOM_BYTES", 3 << 30))
    try:
        while sum(t.numel() for t in kept) < limit + (1 << 30):
            kept.append(torch.ones(1 << 28, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        refused = 1
    held = len(kept)
    total = sum(float(t[:: 1 << 20].float().sum()) for t in kept)
    del kept
    torch.cuda.empty_cache()
    again = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")
    result(
        [total == 256.0 * held, float(again.float().sum())],
        torch.cuda.max_memory_allocated(),
        refused=refused,
        held=held,
    )


def ipc():
    """A tensor shared with another process through CUDA IPC (under the hook: SLUICE_UNMANAGED=1)."""
    torch = seeded_torch()
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=ipc_child, args=(there, back))
    child.start()
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    there.put(x)
    total = back.get(timeout=50)
    torch.cuda.synchronize()
    changed = float(x[5])
    there.put(None)
    child.join(20)
    result([total, changed, child.exitcode], torch.cuda.max_memory_allocated())


def ipc_child(there, back):
    x = there.get()
    total = float(x.double().sum())
    x[5] = 1234.0
    import torch

    torch.cuda.synchronize()
    back.put(total)
    there.get()
    del x


def ddp():
    """Data-parallel training over NCCL, two processes on two GPUs."""
    torch = seeded_torch()
    if torch.cuda.device_count() < 2:
        skip("one GPU here: DDP needs two")
    import torch.multiprocessing as mp

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000), NCCL_NVLS_ENABLE="0")
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(ddp_rank, args=(queue,), nprocs=2, join=True)
    values, live = queue.get()
    result(values, live)


def ddp_one():
    """One rank of the same training, on the one GPU that this process sees: RANK, MASTER_ADDR and MASTER_PORT."""
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    queue = queue_module.SimpleQueue()
    ddp_rank(int(os.environ["RANK"]), queue, device=0)
    if not queue.empty():
        result(*queue.get())


def ddp_rank(rank, queue, device=None):
    torch = seeded_torch()
    import torch.distributed as dist
    from models import Transformer

    device = rank if device is None else device
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(Transformer(1024, 12).cuda().bfloat16(), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(rank)
    x = torch.randn(4, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def step():
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    values, _ = timed_steps(torch, step, 4)
    if rank == 0:
        queue.put((values, torch.cuda.max_memory_allocated()))
    dist.barrier(device_ids=[device])  # else it takes the rank for the device
    dist.destroy_process_group()


def peers():
    """Blocks of two GPUs: each GPU's kernels update its own blocks and read the other's through peer access. The blocks
    exceed the budget on both."""
    torch = seeded_torch()
    if torch.cuda.device_count() < 2:
        skip("one GPU here: peer access needs two")
    if not (torch.cuda.can_device_access_peer(0, 1) and torch.cuda.can_device_access_peer(1, 0)):
        skip("these two GPUs have no peer access to each other")
    from kernels import scale_add

    count, rounds = 8, 4
    parts = []
    for card in (0, 1):
        generator = torch.Generator(f"cuda:{card}").manual_seed(card)
        parts.append([torch.randn(64 << 20, device=f"cuda:{card}", generator=generator) for _ in range(count)])
    # PyTorch enables peer access at the first copy between the two GPUs.
    parts[1][0][:1].copy_(parts[0][0][:1])
    parts[0][1][:1].copy_(parts[1][1][:1])
    spans, times = [], []

    def wait():
        for card in (0, 1):
            torch.cuda.synchronize(card)

    for turn in range(rounds):
        wait()
        begin = time.perf_counter()
        for card in (1, 0):
            with torch.cuda.device(card):
                first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                first.record()
                for i in range(count):
                    scale_add(parts[card][i], parts[1 - card][(i + turn) % count], 0.5)
                last.record()
            # Ordered by events alone: the host runs ahead of both GPUs.
            with torch.cuda.device(1 - card):
                torch.cuda.current_stream().wait_event(last)
            spans.append((first, last))
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
    best = max(count * (256 << 20) / first.elapsed_time(last) / 1e6 for first, last in spans)
    kept = all(advised(p, card) for card in (0, 1) for p in parts[card]) if "LD_PRELOAD" in os.environ else None
    parts[1][2].copy_(parts[0][3])
    result(
        [float(p.double().sum()) for p in parts[0] + parts[1]],
        torch.cuda.max_memory_allocated(0),
        times,
        kept=kept,
        peer_gbps=round(best, 1),
    )


def own_address(name):
    """The address of a function of the loaded libcuda itself: dlsym would give the hook's."""
    with open("/proc/self/maps") as maps:
        base, path = next(
            (int(line.split("-")[0], 16), line.split()[5])
            for line in maps
            if "libcuda.so" in line and line.split()[2] == "00000000"
        )
    with open(path, "rb") as file:
        elf = file.read()
    offset, count = struct.unpack_from("<Q", elf, 40)[0], struct.unpack_from("<H", elf, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + 64 * i) for i in range(count)]
    symbols = next(s for s in sections if s[1] == 11)  # SHT_DYNSYM
    names = sections[symbols[6]][4]
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        text, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
        begin = names + text
        if value and elf[begin : elf.index(b"\0", begin)] == name.encode():
            return base + value
    raise LookupError(f"{path} has no {name}")


def advised(tensor, owner):
    """Whether all of a managed tensor is preferred on its own GPU and mapped by the other."""
    ask = ctypes.CFUNCTYPE(
        ctypes.c_int, *[ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t]
    )(own_address("cuMemRangeGetAttribute"))
    where, mapped = ctypes.c_int(), (ctypes.c_int * 2)()
    start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    preferred_location, accessed_by = 2, 3
    return (
        ask(ctypes.addressof(where), 4, preferred_location, start, size) == 0
        and where.value == owner
        and ask(ctypes.addressof(mapped), 8, accessed_by, start, size) == 0
        and 1 - owner in mapped
    )


def graph_pair():
    """Two reduce-overhead graphs used in turn, and allocations between them."""
    torch = seeded_torch()
    from models import Transformer

    a, b = (torch.compile(Transformer(1024, 6).cuda().bfloat16(), mode="reduce-overhead") for _ in range(2))
    x = torch.randn(4, 512, 1024, device="cuda", dtype=torch.bfloat16)
    values, noise = [], []
    with torch.no_grad():
        for _i in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            y = a(x).clone()
            noise.append(torch.randn(64 << 20, device="cuda", dtype=torch.bfloat16))
            noise = noise[-6:]
            torch.compiler.cudagraph_mark_step_begin()
            values.append(float(b(y).float().double().sum()))
    result(values + [float(n.float().sum()) for n in noise], torch.cuda.max_memory_allocated())


def capture_beside():
    """A second thread uses more memory than the budget while the first captures and replays a graph."""
    torch = seeded_torch()
    stop, errors, rounds = threading.Event(), [], [0]

    def pressure():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                parts = [torch.full((64 << 20,), float(i), device="cuda") for i in range(8)]
                while not stop.is_set():
                    for p in parts:
                        p.add_(1)
                    rounds[0] += 1
                    torch.cuda.current_stream().synchronize()
                for i, p in enumerate(parts):
                    if not bool((p == i + rounds[0]).all()):
                        errors.append(f"part {i} is {float(p[0])}, not {i + rounds[0]}")
        except Exception as error:  # reported by the main thread
            errors.append(repr(error))

    thread = threading.Thread(target=pressure)
    thread.start()
    x = torch.randn(4096, 4096, device="cuda")
    values = []
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x @ x  # the library makes its handle and workspace before the capture
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            z = (x @ x).relu() / 64
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
        values.append(float(z.double().sum()))
    stop.set()
    thread.join()
    if errors:
        sys.exit("; ".join(errors))
    result(values, torch.cuda.max_memory_allocated(), rounds=rounds[0])


def triton():
    """Kernels compiled by Triton, launched over tensors that together exceed the budget."""
    torch = seeded_torch()
    try:
        from kernels import scale_add
    except ImportError as error:
        skip(f"no Triton here: {error}")
    n = 64 << 20
    parts = [torch.randn(n, device="cuda") for _ in range(10)]
    for _ in range(3):
        for i in range(10):
            scale_add(parts[i], parts[(i + 1) % 10], 0.5)
    result([float(p.double().sum()) for p in parts], torch.cuda.max_memory_allocated())


def cupy():
    try:
        import cupy as cp
    except ImportError as error:
        skip(f"no CuPy here: {error}")
    rng = cp.random.RandomState(3)
    parts = [rng.standard_normal((4096, 4096), dtype=cp.float32) for _ in range(24)]
    for _ in range(2):
        for i in range(24):
            parts[i] = parts[i] @ parts[(i + 1) % 24] / cp.float32(64)
    result([float(p.astype(cp.float64).sum()) for p in parts], cp.get_default_memory_pool().total_bytes())


def stdout_clean():
    """Only the program writes to stdout: exactly one line before the result."""
    torch = seeded_torch()
    print(float(torch.ones(10, device="cuda").sum()))
    result([1], torch.cuda.max_memory_allocated())


def many_contexts():
    """Many contexts created and destroyed, with a little memory in each."""
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    done = 0
    for _ in range(int(os.environ.get("SLUICE_TEST_CONTEXTS", "60"))):
        assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
        pointer = ctypes.c_ulonglong()
        assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
        assert cuda.cuMemsetD8_v2(pointer, 7, ctypes.c_size_t(1 << 20)) == 0
        assert cuda.cuCtxDestroy_v2(context) == 0
        done += 1
    result([done], 1 << 20)


if __name__ == "__main__":
    first = (threads, fork, oom, ipc, ddp, ddp_one, peers, graph_pair, capture_beside)
    second = (triton, cupy, jax, jax_training, stdout_clean, many_contexts)
    names = {f.__name__: f for f in first + second}
    if len(sys.argv) != 2 or sys.argv[1] not in names:
        sys.exit(f"features.py: NAME is missing or unknown; accepted: {', '.join(names)}")
    names[sys.argv[1]]()
