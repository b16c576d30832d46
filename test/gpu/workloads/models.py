"""Models of the correctness runs and the benchmarks, with random weights, so that nothing is downloaded."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, d=2048, layers=12):
        super().__init__()
        self.layers = nn.ModuleList(Layer(d, d // 64) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.c1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.c2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.b1, self.b2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short = (
            nn.Conv2d(inside, outside, 1, stride, bias=False) if stride != 1 or inside != outside else nn.Identity()
        )

    def forward(self, x):
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.short(x))


def convnet(width=128, classes=100):
    shape = [
        (width, 1),
        (width, 1),
        (2 * width, 2),
        (2 * width, 1),
        (4 * width, 2),
        (4 * width, 1),
        (8 * width, 2),
        (8 * width, 1),
    ]
    blocks, inside = [nn.Conv2d(3, width, 3, 1, 1, bias=False)], width
    for outside, stride in shape:
        blocks.append(Residual(inside, outside, stride))
        inside = outside
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def gated(layer, x):
    """A Llama layer's MLP."""
    h = F.rms_norm(x, (x.shape[-1],))
    return x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))


class Llama(nn.Module):
    """Decoding shape of a Llama: RMS norm, rotary positions, grouped queries, gated MLP, a cache per layer."""

    def __init__(self, d=2048, layers=24, vocabulary=32000, heads=16, kv_heads=4, longest=1024, batch=1):
        super().__init__()
        self.d, self.heads, self.kv_heads, self.head = d, heads, kv_heads, d // heads
        self.embedding = nn.Embedding(vocabulary, d)
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "q": linear(d, d),
                    "kv": linear(d, 2 * kv_heads * self.head),
                    "o": linear(d, d),
                    "gate": linear(d, 3 * d),
                    "up": linear(d, 3 * d),
                    "down": linear(3 * d, d),
                }
            )
            for _ in range(layers)
        )
        self.head_out = linear(d, vocabulary)
        shape = (layers, 2, batch, kv_heads, longest, self.head)
        self.register_buffer("cache", torch.zeros(shape))
        angle = 10000.0 ** (-torch.arange(0, self.head, 2).float() / self.head)
        angles = torch.outer(torch.arange(longest).float(), angle)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def rotate(self, x, at):
        a, b = x[..., ::2], x[..., 1::2]
        cos, sin = self.cos[at].to(x.dtype), self.sin[at].to(x.dtype)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def forward(self, token, at):
        b = token.shape[0]
        x = self.embedding(token)
        for i, layer in enumerate(self.layers):
            h = F.rms_norm(x, (self.d,))
            q = self.rotate(layer["q"](h).view(b, self.heads, 1, self.head), at)
            k, v = layer["kv"](h).view(b, 2, self.kv_heads, 1, self.head).unbind(1)
            self.cache[i, 0, :, :, at] = self.rotate(k, at).squeeze(2)
            self.cache[i, 1, :, :, at] = v.squeeze(2)
            keys, values = self.cache[i, 0, :, :, : at + 1], self.cache[i, 1, :, :, : at + 1]
            repeat = self.heads // self.kv_heads
            y = F.scaled_dot_product_attention(
                q, keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
            )
            x = x + layer["o"](y.reshape(b, self.d))
            x = gated(layer, x)
        return self.head_out(F.rms_norm(x, (self.d,)))
