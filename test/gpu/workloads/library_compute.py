"""Features of library_features.py that compute: graphs, numerics, attention, generation, formats of few bits."""

from library_tools import bits, deep, finish, randn

from common import seeded_torch, skip

MIB = 1 << 20


def graph_trees():
    """Training by reduce-overhead with several batch sizes: graph trees, and a second compilation for any shape."""
    torch = seeded_torch()
    import torch._inductor.config as inductor

    if hasattr(inductor, "deterministic"):
        inductor.deterministic = True
    model = deep(torch, 6, 4096).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    values = []
    for rows in (256, 256, 384, 512, 384, 256, 512, 384):
        torch.compiler.cudagraph_mark_step_begin()
        x = randn(torch, rows, 4096)
        loss = (compiled(x) - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    finish(torch, values + bits(*model.parameters()))


def graph_pool():
    """Graphed callables that are trained, and graphs of several shapes in one pool, some reset and captured anew."""
    torch = seeded_torch()
    first, second = deep(torch, 4, 4096).cuda(), deep(torch, 4, 4096).cuda()
    x = randn(torch, 256, 4096)
    samples = ((x.clone(),), (x.clone().requires_grad_(),))
    graphed = torch.cuda.make_graphed_callables((first, second), samples)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    values = []
    for _ in range(4):
        optimizer.zero_grad(set_to_none=True)
        loss = (graphed[1](graphed[0](x)) - x).square().mean()
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    del graphed, loss
    pool, graphs = torch.cuda.graph_pool_handle(), {}
    weights = [p.detach() for p in second.parameters() if p.dim() == 2]

    def capture(rows):
        given = torch.zeros(rows, 4096, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = given
            for weight in weights:
                out = (out @ weight).relu()
            out = torch.cat([out, out * 2])
        graphs[rows] = graph, given, out

    for turn in range(3):
        for rows in (2048, 4096, 6144):
            capture(rows)
        for rows in (4096, 2048, 6144, 4096):
            graph, given, out = graphs[rows]
            given.copy_(randn(torch, rows, 4096))
            graph.replay()
            values += bits(out)
        for rows in (2048, 4096) if turn < 2 else ():
            graphs.pop(rows)[0].reset()
    torch.cuda.synchronize()
    finish(torch, values)


def numerics():
    """Sparse products, factorizations (cuSOLVER), Fourier transforms (cuFFT), and accumulation at repeated indices."""
    torch = seeded_torch()
    kept = [randn(torch, 32 * MIB) for _ in range(6)]
    values = []
    # Small whole numbers: their sums are exact in any order.
    dense = torch.randint(-4, 5, (8192, 1024), device="cuda").float()
    places = torch.randint(0, 8192, (2, 1 << 20), device="cuda")
    sparse = torch.sparse_coo_tensor(places, torch.ones(1 << 20, device="cuda"), (8192, 8192)).coalesce()
    values += bits(sparse @ dense, sparse.to_sparse_csr() @ dense, sparse.values())
    square = randn(torch, 3072, 3072, dtype=torch.float64)
    positive = square @ square.T / 3072 + torch.eye(3072, device="cuda", dtype=torch.float64)
    values += bits(torch.linalg.cholesky(positive), torch.linalg.solve(square, positive[:, :512]))
    values += bits(*torch.linalg.qr(square[:, :1024]), torch.linalg.eigvalsh(positive[:1024, :1024]))
    values += bits(torch.linalg.svdvals(square[:512, :512]))
    del square, positive, sparse, dense, places
    for part in kept:
        wave = torch.fft.rfft2(part.view(8192, 4096))
        values += bits(torch.fft.irfft2(wave * 0.5, s=(8192, 4096)))
        values += bits(torch.fft.fft(part.view(-1, 1024)[: 1 << 13], dim=0))
    del wave
    index = torch.randint(0, 1 << 22, (1 << 23,), device="cuda")
    for part in kept:
        part.index_put_((index,), torch.ones(1 << 23, device="cuda"), accumulate=True)
    finish(torch, values + bits(*kept))


def attention():
    """Attention forward and backward by the three kernels of PyTorch, with gradients of all layers kept."""
    torch = seeded_torch()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def inputs(*shape):
        return [randn(torch, *shape, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]

    values = []
    for backend, shape, layers in (
        (SDPBackend.FLASH_ATTENTION, (4, 16, 4096, 64), 4),
        (SDPBackend.EFFICIENT_ATTENTION, (4, 16, 4096, 64), 4),
        (SDPBackend.MATH, (2, 4, 2048, 64), 2),
    ):
        stack = [inputs(*shape) for _ in range(layers)]
        with sdpa_kernel(backend):
            total = 0
            for q, k, v in stack:
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                total = total + out.float().square().mean()
            total.backward()
        values += [float(total.detach()), *bits(*(part.grad for parts in stack for part in parts))]
    finish(torch, values)


def generate():
    """Text by transformers' generate, with a cache that grows and with a static one (which it compiles)."""
    torch = seeded_torch()
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        skip(f"no transformers here: {error}")
    shape = dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=4, num_attention_heads=24)  # noqa: C408
    config = LlamaConfig(vocab_size=8192, num_key_value_heads=8, max_position_embeddings=512, **shape)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    tokens = torch.randint(3, 8192, (4, 64), device="cuda")
    values = []
    for options in (
        {},
        {"cache_implementation": "static", "disable_compile": True},
        {"cache_implementation": "static"},
        {"cache_implementation": "static"},
    ):
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
            **options,
        )
        values += out.sequences[:, 64:].flatten().tolist() + bits(out.logits[-1])
    finish(torch, values)


def triton_tuned():
    """A kernel that Triton tunes, and one with programs that stay and count by atomics."""
    torch = seeded_torch()
    try:
        from library_kernels import histogram, tuned_mix
    except ImportError as error:
        skip(f"no Triton here: {error}")
    parts = [randn(torch, 48 * MIB) for _ in range(8)]
    bins, counter = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (1024, 1))
    programs = torch.cuda.get_device_properties(0).multi_processor_count * 2
    for _ in range(3):
        for i, part in enumerate(parts):
            tuned_mix(part, parts[(i + 1) % len(parts)])
            if i % 4 == 0:
                histogram(part, bins, counter, programs)
    short = randn(torch, 5 * MIB + 3)
    tuned_mix(short, parts[0][: short.numel()])
    finish(torch, [*bins.tolist(), *bits(short, *parts)])


def low_precision():
    """Products of 8-bit whole numbers and, where the GPU has them, of 8-bit floating point."""
    torch = seeded_torch()
    weights = [torch.randint(-128, 128, (8192, 8192), device="cuda", dtype=torch.int8) for _ in range(20)]
    x, values = torch.randint(-128, 128, (512, 8192), device="cuda", dtype=torch.int8), []
    for _ in range(3):
        for weight in weights:
            y = torch._int_mm(x, weight.t())
            x = (y >> 13).clamp(-127, 127).to(torch.int8)
        values += bits(y)
    if torch.cuda.get_device_capability() >= (8, 9):
        scale = torch.tensor(0.1, device="cuda")
        h = randn(torch, 512, 8192).to(torch.float8_e4m3fn)
        for weight in weights[:8]:
            small = (weight.to(torch.bfloat16) / 64).to(torch.float8_e4m3fn)
            out = torch._scaled_mm(h, small.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
            values += bits(out)
            h = out.clamp(-400, 400).to(torch.float8_e4m3fn)
    finish(torch, values)


def mixed_precision():
    """Half precision with a gradient scaler, a fused optimizer, and activations computed twice."""
    torch = seeded_torch()
    from models import Transformer
    from torch.utils.checkpoint import checkpoint as twice

    model = Transformer(1024, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=2)
    x, values = randn(torch, 8, 512, 1024), []
    for _ in range(6):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            h = x
            for layer in model.layers:
                h = twice(layer, h, use_reentrant=False)
            loss = (model.norm(h).float() - x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        scaler.step(optimizer)
        scaler.update()
        values += [float(loss.detach()), scaler.get_scale()]
    finish(torch, values + bits(*model.parameters()))


PROGRAMS = (
    graph_trees,
    graph_pool,
    numerics,
    attention,
    generate,
    triton_tuned,
    low_precision,
    mixed_precision,
)
