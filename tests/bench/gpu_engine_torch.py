"""GPT-2 in plain PyTorch, as a user would write it: the yardstick of gpu_engine_bench, which prints the same columns.

    gpu_engine_torch.py [SHAPE [PRECISION [compile | recompute | profile]]]    124m | xl | xl48, fp32 | tf32 | bf16
    ISTHMUS_START=FILE: begins with the weights and tokens of `gpu_engine_bench SHAPE start FILE`; the losses are then to agree

bf16 is autocast over fp32 weights; attention is scaled_dot_product_attention, the optimizer the fused AdamW. recompute: each block under torch.utils.checkpoint.
"""
import contextlib
import os
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch_block import Block

MICROS, STEPS, CONTEXT, VOCABULARY = 8, 5, 1024, 50304
PEAK_FLOPS = 989e12


class Gpt2(nn.Module):
    def __init__(self, layers, hidden, heads, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.wte, self.wpe = nn.Embedding(VOCABULARY, hidden), nn.Embedding(CONTEXT, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:  # GPT-2's: two residual projections a layer
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if ".c_proj." in name or ".c_out." in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def start_from(path, model, batch):
    """Takes the weights of a file; its tokens as inputs and targets by micro-batch."""
    from safetensors.torch import load_file
    file = load_file(path)
    names = {"attn.c_attn": "c_attn", "attn.c_proj": "c_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "c_out"}
    state = {}
    for name, value in file.items():
        if name == "ids":
            continue
        name = name.replace("transformer.", "").replace("h.", "blocks.", 1)
        for theirs, ours in names.items():
            if f".{theirs}." in name:
                name, value = name.replace(theirs, ours), value.t() if name.endswith("weight") else value
        state[name] = value
    state["head.weight"] = state["wte.weight"]
    model.load_state_dict(state)
    ids = file["ids"].long()
    return [ids[first:first + MICROS * batch * CONTEXT].view(MICROS, batch, CONTEXT) for first in (0, 1)]


def main():
    shape = sys.argv[1] if len(sys.argv) > 1 else "124m"
    precision = sys.argv[2] if len(sys.argv) > 2 else "bf16"
    mode = sys.argv[3] if len(sys.argv) > 3 else ""
    layers, hidden, heads, batch = {"124m": (12, 768, 12, 8), "xl": (12, 1600, 25, 4), "xl48": (48, 1600, 25, 4)}[shape]
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    model = Gpt2(layers, hidden, heads, mode == "recompute").cuda()
    run = torch.compile(model) if mode == "compile" else model
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    if "ISTHMUS_START" in os.environ:
        inputs, targets = start_from(os.environ["ISTHMUS_START"], model, batch)
    else:
        text = torch.randint(VOCABULARY, (MICROS, batch, CONTEXT + 1))
        inputs, targets = text[..., :-1], text[..., 1:]
    inputs, targets = inputs.contiguous().pin_memory(), targets.contiguous().pin_memory()
    cast = (lambda: torch.autocast("cuda", torch.bfloat16)) if precision == "bf16" else contextlib.nullcontext

    def step():
        loss = torch.zeros((), device="cuda")
        for micro in range(MICROS):
            x, y = inputs[micro].cuda(non_blocking=True), targets[micro].cuda(non_blocking=True)
            with cast():
                part = run(x, y) / MICROS
            part.backward()
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(3):
        loss = step()
    if mode == "profile":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
        print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=30, max_name_column_width=90))
        return
    seconds = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    seconds = statistics.median(seconds)
    tokens = MICROS * batch * CONTEXT
    flops = 6 * sum(p.numel() for p in parameters) + 12 * layers * hidden * CONTEXT
    print(f"| PyTorch{ {'compile': ' compiled', 'recompute': ', recompute'}.get(mode, '')} | {shape} | {precision} | 1 | {seconds * 1e3:.1f} | {tokens / seconds:.0f} | "
          f"{100 * flops * tokens / seconds / PEAK_FLOPS:.1f} % | {torch.cuda.max_memory_allocated() / 2**30:.2f} | | {loss:.4f} |")


if __name__ == "__main__":
    main()
