"""A block of a GPT-2 in plain PyTorch, as a user would write it: of the yardsticks gpu_engine_torch.py and torch_worker.py."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.c_out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, positions, hidden = x.shape
        q, k, v = (part.view(batch, positions, self.heads, hidden // self.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(hidden, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(hidden // self.heads)
            mask = torch.ones(positions, positions, dtype=torch.bool).triu(1)
            y = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, positions, hidden))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
