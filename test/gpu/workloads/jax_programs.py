"""JAX under the hook, for features.py."""

import os
import time

from common import result, skip


def open_jax():
    """JAX, whose memory XLA allocates through VMM."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    try:
        import jax as j
        import jax.numpy as jnp
    except ImportError as error:
        skip(f"no JAX here: {error}")
    if not any(d.platform == "gpu" for d in j.devices()):
        skip("JAX sees no GPU")
    return j, jnp


def jax_bytes(j, arrays):
    """Live bytes at the peak; the platform allocator keeps no count."""
    stats = j.devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use") or sum(a.nbytes for a in arrays)


def jax():
    j, jnp = open_jax()

    def loss(w, x):
        for m in w:
            x = jnp.tanh(x @ m)
        return (x**2).mean()

    keys = j.random.split(j.random.PRNGKey(0), 9)
    w = [j.random.normal(k, (2048, 2048)) / 45 for k in keys[:8]]
    x = j.random.normal(keys[8], (2048, 2048))
    step = j.jit(lambda w, x: (loss(w, x), [m - 0.1 * g for m, g in zip(w, j.grad(loss)(w, x))]))
    values = []
    for _ in range(6):
        value, w = step(w, x)
        values.append(float(value))
    result(values, jax_bytes(j, w))


def jax_training():
    """Steps of a deep network whose weights and momenta are 2 GiB, each layer one call: the host sees every buffer."""
    j, jnp = open_jax()
    layers, width, rows = 16, 4096, 2048

    @j.jit
    def forward(w, x):
        return jnp.tanh(x @ w)

    @j.jit
    def backward(w, m, x, y, g):
        g = g * (1 - y * y)
        m = 0.9 * m + x.T @ g
        return w - 1e-3 * m, m, g @ w.T

    keys = j.random.split(j.random.PRNGKey(0), layers + 1)
    w = [j.random.normal(k, (width, width)) / 64 for k in keys[:layers]]
    m = [jnp.zeros((width, width)) for _ in range(layers)]
    x = j.random.normal(keys[layers], (rows, width))
    values, times = [], []
    for _ in range(14):
        begin = time.monotonic()
        ys = [x]
        for layer in w:
            ys.append(forward(layer, ys[-1]))
        g = ys[-1] / ys[-1].size
        values.append(float((ys[-1] ** 2).mean()))
        for i in reversed(range(layers)):
            w[i], m[i], g = backward(w[i], m[i], ys[i], ys[i + 1], g)
        g.block_until_ready()
        times.append(1000 * (time.monotonic() - begin))
    result(values, jax_bytes(j, [*w, *m, *ys]), step_ms=times)
