"""How often convolutions, matrix products and others read a remote operand (accessed-by), without the hook.

    timeout -k 2 60 python3 experiments/probes/remote_reread.py    # 20 s; remote_reread.json in $OUT or build/gpu

One operand of each call is in managed memory of the host, mapped to the card; the others are on the card. The call then
runs with all operands on the card. The time beyond a kernel that streams the same bytes once is re-reading:
passes = time with the remote operand x the rate of streaming / the operand's bytes. If the call takes as long with all
operands on the card, it did not wait for the link, and passes are at most that.
"""

import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
GPU_TESTS = HERE.parents[1] / "test" / "gpu"
sys.path[:0] = [str(GPU_TESTS), str(GPU_TESTS / "workloads")]
import guard  # noqa: E402
import torch  # noqa: E402
from managed import CARD, HOST, SET_ACCESSED_BY, SET_PREFERRED_LOCATION, Managed  # noqa: E402
from torch.nn import functional as F  # noqa: E402

MANAGED_BYTES, SMALLEST = 512 << 20, 1 << 20  # the time of smaller operands is latency
BEGIN = time.monotonic()
SECONDS = 15


class HostMemory(Managed):
    """One managed buffer that stays in host memory and is mapped to the card. It holds one operand at a time."""

    def __init__(self):
        super().__init__(torch, MANAGED_BYTES)
        self.advise(SET_PREFERRED_LOCATION, HOST)
        self.advise(SET_ACCESSED_BY, CARD)
        self.prefetch(HOST)

    def take(self, tensor):
        """The same contents and layout, in host memory."""
        size = tensor.untyped_storage().nbytes()
        assert size <= MANAGED_BYTES
        here = torch.as_strided(self.bytes[:size].view(tensor.dtype), tensor.shape, tensor.stride())
        here.copy_(tensor)
        return here


def milliseconds(call, repeats):
    call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / 32


def convolution(batch, inside, outside, size, kernel, stride):
    """The three passes of a convolution, channels last, as PyTorch calls them. Operands are named."""
    pad = kernel // 2
    x = normal(batch, inside, size, size).to(memory_format=torch.channels_last)
    w = normal(outside, inside, kernel, kernel).to(memory_format=torch.channels_last)
    y = torch.empty_like(F.conv2d(x, w, None, stride, pad)).normal_().to(memory_format=torch.channels_last)
    back = lambda mask: (
        lambda x, w, dy: torch.ops.aten.convolution_backward(
            dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask
        )
    )
    name = f"{inside} to {outside} channels, {size} x {size}, {kernel} x {kernel}, stride {stride}"
    yield f"convolution {name}", lambda x, w: F.conv2d(x, w, None, stride, pad), {"x": x, "w": w}
    yield f"its data's gradient {name}", lambda w, dy: back([True, False, False])(x, w, dy), {"w": w, "dy": y}
    yield f"its filter's gradient {name}", lambda x, dy: back([False, True, False])(x, w, dy), {"x": x, "dy": y}


def product(rows, inside, outside):
    """A linear layer's three products, and the result where it may be in host memory."""
    x, w, y = normal(rows, inside), normal(outside, inside), normal(rows, outside)
    name = f"{rows} x {inside} to {outside}"
    yield f"product {name}", lambda x, w, out: torch.mm(x, w.t(), out=out), {"x": x, "w": w, "out": y}
    if rows >= 256:
        yield f"its data's gradient {name}", lambda dy, w: torch.mm(dy, w), {"dy": y, "w": w}
        yield f"its weights' gradient {name}", lambda dy, x: torch.mm(dy.t(), x), {"dy": y, "x": x}


def attention(batch, heads, length, head):
    q, k, v = (normal(batch, heads, length, head) for _ in range(3))
    yield (
        f"attention {batch} x {heads} x {length} x {head}",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        {"q": q, "k": k, "v": v},
    )


def normalization(batch, channels, size):
    x, dy = (normal(batch, channels, size, size).to(memory_format=torch.channels_last) for _ in range(2))
    one, zero = torch.ones(channels, device="cuda"), torch.zeros(channels, device="cuda")
    _, mean, scale = torch.ops.aten.native_batch_norm(x, one, zero, None, None, True, 0.1, 1e-5)
    yield (
        f"batch norm {channels} channels, {size} x {size}",
        lambda x: torch.ops.aten.native_batch_norm(x, one, zero, None, None, True, 0.1, 1e-5),
        {"x": x},
    )
    yield (
        f"its gradient {channels} channels, {size} x {size}",
        lambda x, dy: torch.ops.aten.native_batch_norm_backward(
            dy, x, one, None, None, mean, scale, True, 1e-5, [True] * 3
        ),
        {"x": x, "dy": dy},
    )


def streams():
    """Kernels that read their operands once and overwrite them, as an optimizer's do.

    At the link's sum of both directions (84 GB/s) that makes 1.2 passes.
    """
    x, y = normal(32 << 20), normal(32 << 20).abs()
    parts = lambda tensor: list(tensor.view(16, -1))
    yield "elementwise, read", lambda x: torch.add(x, 1, out=y), {"x": x}
    yield "elementwise, updated", lambda x: x.mul_(0.999), {"x": x}
    yield "foreach mul", lambda x: torch._foreach_mul_(parts(x), 0.999), {"x": x}
    yield "foreach lerp", lambda x, y: torch._foreach_lerp_(parts(x), parts(y), 0.1), {"x": x, "y": y}
    yield "foreach addcmul", lambda x, y: torch._foreach_addcmul_(parts(x), parts(y), parts(y), 0.1), {"x": x, "y": y}
    yield "foreach addcdiv", lambda x, y: torch._foreach_addcdiv_(parts(x), parts(y), parts(y), 0.1), {"x": x, "y": y}
    yield "foreach sqrt", lambda y: torch._foreach_sqrt(parts(y)), {"y": y}


def cases():
    yield from streams()
    # The convolution net's of test/gpu/workloads, batch 256.
    for shape in (
        (128, 128, 64, 3, 1),
        (256, 256, 32, 3, 1),
        (512, 512, 16, 3, 1),
        (1024, 1024, 8, 3, 1),
        (128, 256, 64, 3, 2),
        (512, 1024, 16, 3, 2),
        (256, 512, 32, 1, 2),
    ):
        yield from convolution(256, *shape)
    yield from normalization(256, 128, 64)
    # The decoder's products (batch 1 and 4), then the transformer's (2,048 tokens).
    for shape in ((1, 2048, 6144), (4, 2048, 6144), (4, 6144, 2048), (4, 2048, 32000)):
        yield from product(*shape)
    for shape in ((2048, 2048, 6144), (2048, 2048, 2048), (2048, 2048, 8192), (2048, 8192, 2048)):
        yield from product(*shape)
    yield from attention(4, 32, 512, 64)


def measure_remote(host, call, operands):
    here = milliseconds(lambda: call(**operands), 3)
    for which, tensor in operands.items():
        size = tensor.untyped_storage().nbytes()
        if size >= SMALLEST:
            there = {**operands, which: host.take(tensor)}
            yield {
                "operand": which,
                "bytes": size,
                "ms_on_card": here,
                "ms_remote": milliseconds(lambda: call(**there), 2),
            }


def streaming_rates(host):
    """GB/s of one pass over the link, read and written. The buffer on the card is freed on return."""
    remote = host.bytes.view(torch.float32)
    local = torch.empty_like(remote)
    read = milliseconds(lambda: remote.sum(), 3)
    written = milliseconds(lambda: torch.add(local, 1, out=remote), 3)
    return MANAGED_BYTES / read / 1e6, MANAGED_BYTES / written / 1e6


def main():
    try:
        guard.variables(guard.open_nvml(), MANAGED_BYTES)
    except guard.Refused as error:
        sys.exit(f"remote_reread: {error}")
    torch.manual_seed(7)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    host = HostMemory()
    rate_in, rate_out = streaming_rates(host)
    results = {
        "gpu": torch.cuda.get_device_name(),
        "driver": guard.open_nvml().driver(),
        "gb_per_s_in": rate_in,
        "gb_per_s_out": rate_out,
        "calls": [],
    }
    print(f"{results['gpu']}: streamed once over the link: read {rate_in:.1f}, written {rate_out:.1f} GB/s", flush=True)
    left_out = 0
    for name, call, operands in cases():
        if time.monotonic() - BEGIN > SECONDS:
            left_out += 1
            continue
        try:
            for one in measure_remote(host, call, operands):
                one["passes"] = (
                    one["ms_remote"] * 1e6 * (rate_out if one["operand"] == "out" else rate_in) / one["bytes"]
                )
                results["calls"].append({"call": name, **one})
                print(
                    f"{name}: {one['operand']}, {one['bytes'] / 2**20:.1f} MiB: {one['ms_on_card']:.3f} ms on the "
                    f"card, {one['ms_remote']:.3f} remote: {one['passes']:.2f} passes",
                    flush=True,
                )
        except RuntimeError as error:  # this PyTorch refuses the call; the others still run
            print(f"{name}: {error}", flush=True)
    if left_out:
        print(f"{left_out} calls left out: {SECONDS} s are over")
    out = pathlib.Path(os.environ.get("OUT") or HERE.parents[1] / "build" / "gpu")
    out.mkdir(parents=True, exist_ok=True)
    (out / "remote_reread.json").write_text(json.dumps(results, indent=1))


main()
