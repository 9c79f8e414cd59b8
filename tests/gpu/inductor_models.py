# SPDX-License-Identifier: Apache-2.0
"""Three models for torch.compile: a transformer's block, a convolutional net, and an MLP mixer. Each with its inputs, on a GPU large enough to be
timed, on the emulator small."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((width, 4 * width), (width, 4 * width), (4 * width, width)))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self._turned(q), self._turned(k)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def _turned(x):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2], device=x.device)[:, None] * 10000.0 ** (-torch.arange(half, device=x.device) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).to(x.dtype)


class Net(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels)
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, 1, 1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(4))
        self.head = nn.Linear(channels, 100)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        for i in (0, 2):
            y = F.relu(self.norms[i](self.convs[i](x)))
            x = F.relu(x + self.norms[i + 1](self.convs[i + 1](y)))
        return self.head(x.mean((2, 3)))


class Mixer(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))


# name: (model, its arguments, the shape of the input), on a GPU and on the emulator.
MODELS = {
    "transformer block": ((Block, (2048, 16), (4, 1024, 2048)), (Block, (64, 2), (1, 32, 64))),
    "convolutional net": ((Net, (128,), (32, 3, 224, 224)), (Net, (8,), (2, 3, 16, 16))),
    "MLP mixer": ((Mixer, (256, 1024), (32, 256, 1024)), (Mixer, (16, 32), (2, 16, 32))),
}


def made(name: str, device: str):
    """(the model, its input), in bfloat16 on a GPU, the same for each caller."""
    kind, arguments, shape = MODELS[name][device != "cuda"]
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return kind(*arguments).to(device, dtype), torch.randn(shape).to(device, dtype)
