"""An inference server's engine: a Llama-shaped decoder with random weights, a paged KV cache, prompts one by one, and
decode steps as CUDA graphs. On a CPU (device="cpu") the same without graphs, to test it.

Not thread-safe: poll() does the work.
"""

import collections
import hashlib
import struct
import time

PAGE = 16  # tokens


class Shape:
    def __init__(self, tiny):
        self.vocabulary, self.width, self.layers = (512, 64, 2) if tiny else (128256, 2048, 16)
        self.heads, self.kv_heads, self.head = (4, 2, 16) if tiny else (32, 8, 64)
        self.inner = 4 * self.width
        self.token_bytes = self.layers * 2 * self.kv_heads * self.head * (4 if tiny else 2)


class Model:
    """Weights and caches. A page of the cache holds PAGE tokens; page 0 belongs to empty rows of the batch."""

    def __init__(self, torch, device, shape, pages, longest):
        self.torch, self.shape, s = torch, shape, shape
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        torch.manual_seed(7)

        def weight(*size):
            return torch.empty(*size, device=device, dtype=dtype).normal_(0, 0.02)

        self.embedding = weight(s.vocabulary, s.width)
        self.blocks = [
            {
                "qkv": weight((s.heads + 2 * s.kv_heads) * s.head, s.width),
                "out": weight(s.width, s.heads * s.head),
                "up": weight(2 * s.inner, s.width),
                "down": weight(s.width, s.inner),
            }
            for _ in range(s.layers)
        ]
        self.norm = torch.ones(s.width, device=device, dtype=dtype)
        # Zeros, as vLLM allocates its cache: every page is written once.
        size = (pages * PAGE, s.kv_heads, s.head)
        self.keys = [torch.zeros(size, device=device, dtype=dtype) for _ in range(s.layers)]
        self.values = [torch.zeros(size, device=device, dtype=dtype) for _ in range(s.layers)]
        angle = torch.outer(torch.arange(longest), 500000.0 ** (-torch.arange(0, s.head, 2) / s.head))
        self.turn = torch.cat((angle, angle), -1)
        self.cos, self.sin = self.turn.cos().to(device, dtype), self.turn.sin().to(device, dtype)

    def rotate(self, x, positions):
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        low, high = x.chunk(2, -1)
        return x * cos + self.torch.cat((-high, low), -1) * sin

    def forward(self, tokens, positions, slots, attend):
        """Hidden states; writes keys and values to `slots`. attend(layer, q, k, v) -> [tokens, heads x head]."""
        F, s = self.torch.nn.functional, self.shape
        x = self.embedding[tokens]
        for i, block in enumerate(self.blocks):
            q, k, v = (
                F.linear(F.rms_norm(x, (s.width,), self.norm), block["qkv"])
                .view(len(tokens), -1, s.head)
                .split((s.heads, s.kv_heads, s.kv_heads), 1)
            )
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            self.keys[i].index_copy_(0, slots, k)
            self.values[i].index_copy_(0, slots, v)
            x = x + F.linear(attend(i, q, k, v), block["out"])
            gate, up = F.linear(F.rms_norm(x, (s.width,), self.norm), block["up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, block["down"])
        return x

    def choose(self, x):
        """Of each row: the token of the highest logit, and the sum of the last hidden state, whose bits are compared: a
        token alone would hide most differences."""
        x = self.torch.nn.functional.rms_norm(x, (self.shape.width,), self.norm)
        return (x @ self.embedding.T).argmax(-1), x.float().sum(-1)

    def prefill(self, tokens, slots):
        def attend(_, q, k, v):
            q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
            out = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.squeeze(0).transpose(0, 1).reshape(len(tokens), -1)

        positions = self.torch.arange(len(tokens), device=tokens.device)
        return self.choose(self.forward(tokens, positions, slots, attend)[-1:])


class Batch:
    """Rows that decode together: one CUDA graph of this many rows, whatever of them is empty."""

    def __init__(self, model, device, rows, pages_each, attention):
        torch = model.torch
        self.model, self.rows = model, rows
        self.tokens = torch.zeros(rows, device=device, dtype=torch.int64)
        self.positions = torch.zeros(rows, device=device, dtype=torch.int64)
        self.active = torch.zeros(rows, device=device, dtype=torch.int64)
        self.table = torch.zeros(rows, pages_each, device=device, dtype=torch.int32)
        self.chosen = torch.zeros(rows, 2, device=device, dtype=torch.float64)
        self.attend_pages = attention(torch, device, rows, model.shape.heads, model.shape.head, pages_each * PAGE)
        self.out = torch.empty(rows, model.shape.heads, model.shape.head, device=device, dtype=model.norm.dtype)
        self.graph = None
        pinned = device == "cuda"
        self.host = torch.zeros(rows, 2, dtype=torch.float64, pin_memory=pinned)
        self.host_table = torch.zeros(rows, pages_each, dtype=torch.int32, pin_memory=pinned)

    def step(self):
        page = self.table.gather(1, (self.positions // PAGE).unsqueeze(1)).squeeze(1).long()
        slots = page * PAGE + self.positions % PAGE

        def attend(i, q, k, v):
            keys, values = self.model.keys[i], self.model.values[i]
            q = q.contiguous()
            return self.attend_pages(q, keys, values, self.table, self.positions, PAGE, self.out).view(self.rows, -1)

        token, hidden = self.model.choose(self.model.forward(self.tokens, self.positions, slots, attend))
        self.tokens.copy_(token)
        self.positions.add_(self.active)
        self.chosen[:, 0].copy_(token)
        self.chosen[:, 1].copy_(hidden)

    def capture(self, pool):
        torch = self.model.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.step()

    def run(self):
        """One step; the token and the hidden state's sum of each row."""
        self.graph.replay() if self.graph else self.step()
        self.host.copy_(self.chosen, non_blocking=True)
        self.synchronize()
        return self.host.tolist()

    def synchronize(self):
        if self.graph:
            self.model.torch.cuda.current_stream().synchronize()

    def set_row(self, row, pages, position, token):
        """`pages` None: the row is empty. `token`: a tensor on the device."""
        self.host_table[row] = 0
        if pages is not None:
            self.host_table[row, : len(pages)] = self.model.torch.tensor(pages, dtype=self.host_table.dtype)
        self.positions[row] = position
        self.active[row] = 0 if pages is None else 1
        self.table[row].copy_(self.host_table[row])
        if token is not None:
            self.tokens[row] = token


class Running:
    def __init__(self, number, prompt, output, arrived):
        self.number, self.prompt, self.output, self.arrived = number, prompt, output, arrived
        self.times, self.pages, self.digest, self.row = [], [], hashlib.sha256(), None

    def got(self, token, hidden):
        self.times.append(time.monotonic())
        self.digest.update(struct.pack("<if", int(token), hidden))


class Engine:
    deterministic = True  # in a batch of a given size
    lowest_token = 0

    def __init__(self, torch, device, tiny, batches, longest, cache_bytes=None, live_bytes=None, reuse="last"):
        self.torch, self.device, self.shape = torch, device, Shape(tiny)
        s = self.shape
        self.vocabulary = s.vocabulary
        if device == "cuda":
            from kernels import PagedAttention as attention
        else:
            from serving_cpu import PagedAttention as attention
        weights = (
            s.vocabulary * s.width
            + s.layers * ((2 * s.heads + 2 * s.kv_heads) * s.head * s.width + 3 * s.inner * s.width)
        ) * (2 if device == "cuda" else 4)
        self.weight_bytes = weights
        self.pages_each = -(-longest // PAGE)
        pages = (cache_bytes or live_bytes - weights - (256 << 20)) // (PAGE * s.token_bytes)
        if pages < self.pages_each * max(batches) + 1:
            raise SystemExit(
                f"serving: a cache of {pages} pages; {max(batches)} requests of {longest} tokens need "
                f"{self.pages_each * max(batches) + 1}"
            )
        self.cache_bytes = pages * PAGE * s.token_bytes
        self.model = Model(torch, device, s, pages, longest)
        # The page that was freed last is used first, or the one that was freed first (vLLM's order).
        self.free, self.reuse = collections.deque(range(1, pages)), reuse
        self.batches = {n: Batch(self.model, device, n, self.pages_each, attention) for n in batches}
        self.waiting, self.running, self.batch = collections.deque(), [], None
        if device == "cuda":
            pool = torch.cuda.graph_pool_handle()
            for batch in self.batches.values():
                batch.capture(pool)
            torch.cuda.synchronize()

    def prepare(self, at_once):
        """Before requests of a level: no request may be running."""
        self.batch = self.batches[at_once]
        self.rows = list(range(at_once))
        for row in self.rows:
            self.batch.set_row(row, None, 0, None)

    def submit(self, number, prompt, output):
        self.waiting.append(Running(number, prompt, output, time.monotonic()))

    def begin(self, request):
        """The prompt, and the first token."""
        torch = self.torch
        needed = -(-(len(request.prompt) + request.output) // PAGE)
        take = self.free.pop if self.reuse == "last" else self.free.popleft
        request.pages = [take() for _ in range(needed)]
        pages = torch.tensor(request.pages, device=self.device)
        at = torch.arange(len(request.prompt), device=self.device)
        slots = pages[at // PAGE] * PAGE + at % PAGE
        token, hidden = self.model.prefill(torch.tensor(request.prompt, device=self.device), slots)
        request.row = self.rows.pop()
        self.batch.set_row(request.row, request.pages, len(request.prompt), token[0])
        request.got(token.item(), hidden.item())
        self.running.append(request)

    def poll(self):
        """Prompts that wait, then one decode step. Returns the requests that ended."""
        with self.torch.no_grad():
            while self.waiting and self.rows:
                self.begin(self.waiting.popleft())
            if any(len(r.times) < r.output for r in self.running):
                chosen = self.batch.run()
                for request in self.running:
                    if len(request.times) < request.output:
                        request.got(*chosen[request.row])
        ended = [r for r in self.running if len(r.times) >= r.output]
        for request in ended:
            self.running.remove(request)
            self.batch.set_row(request.row, None, 0, None)
            self.rows.append(request.row)
            self.free.extend(request.pages)
        return [(r.number, r.arrived, r.times, r.digest.hexdigest()[:16]) for r in ended]

    def close(self):
        pass
