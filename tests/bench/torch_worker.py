"""Training over the network in plain PyTorch, as a user would write it: the yardstick of versus_torch.py, which starts one process a node.

    torch_worker.py MODE STEPS LAYERS HIDDEN CONTEXT MICRO MICROS        MODE: gpipe | ddp | powersgd | average | hivemind

Rank, size and the first node's address come by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. gloo, fp32, one thread a process. gpipe: stages of equal
depth, activations and gradients by isend and irecv, all receives posted ahead, the tied embedding's gradient added up by its two ends. ddp: DistributedDataParallel,
synchronised at the last micro-batch of a step. powersgd: the same with PyTorch's PowerSGD hook of rank 4. average: the weights are averaged every 10 steps.
hivemind: the same by hivemind.Optimizer (use_local_updates, in the background, as fp16), whose peers find each other by its DHT.
Rank 0 prints the seconds from the second step's end to the last one's as JSON.
"""
import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch_block import Block

VOCABULARY, HEADS, AVERAGE_EVERY, WARM_UP = 256, 4, 10, 2


class Stage(nn.Module):
    """Layers [first, end) of a GPT-2; the embedding before the first one, the tied head and the loss after the last one."""

    def __init__(self, first, end, layers, hidden, context):
        super().__init__()
        self.is_first, self.is_last = first == 0, end == layers
        if self.is_first or self.is_last:
            self.wte = nn.Embedding(VOCABULARY, hidden)
        if self.is_first:
            self.wpe = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, HEADS) for _ in range(first, end))
        if self.is_last:
            self.ln_f = nn.LayerNorm(hidden)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if ".c_proj." in name or ".c_out." in name else 0.02)

    def forward(self, x, tokens=None, targets=None):
        if self.is_first:
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        if not self.is_last:
            return x
        return F.cross_entropy((self.ln_f(x) @ self.wte.weight.t()).view(-1, VOCABULARY), targets.reshape(-1))


def adamw(model):
    parameters = list(model.parameters())
    return torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
                              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)


class GPipe:
    def __init__(self, layers, hidden, context, micro, micros):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        each = layers // self.world
        self.stage = Stage(self.rank * each, (self.rank + 1) * each, layers, hidden, context)
        ends = dist.new_group([0, self.world - 1])
        self.ends = ends if self.rank in (0, self.world - 1) and self.world > 1 else None
        if self.ends is not None:
            dist.broadcast(self.stage.wte.weight.data, 0, group=self.ends)
        self.optimizer = adamw(self.stage)
        self.shape, self.micros = (micro, context, hidden), micros

    def step(self, text):
        first, last = self.rank == 0, self.rank == self.world - 1
        tags = range(self.micros)
        # Every receive of the step is posted before its first pass: what comes needs no waiting for.
        inputs = [None if first else torch.empty(self.shape) for _ in tags]
        gradients = [None if last else torch.empty(self.shape) for _ in tags]
        coming = [None if first else dist.irecv(inputs[m], self.rank - 1, tag=m) for m in tags]
        back = [None if last else dist.irecv(gradients[m], self.rank + 1, tag=self.micros + m) for m in tags]
        outputs, sends = [], []
        for m in tags:
            if not first:
                coming[m].wait()
                inputs[m].requires_grad_()
            out = self.stage(inputs[m], text[m][:, :-1], text[m][:, 1:])
            outputs.append(out / self.micros if last else out)
            if not last:
                sends.append(dist.isend(out.detach(), self.rank + 1, tag=m))
        for m in tags:
            if not last:
                back[m].wait()
            outputs[m].backward(gradients[m])
            if not first:
                sends.append(dist.isend(inputs[m].grad, self.rank - 1, tag=self.micros + m))
        if self.ends is not None:
            dist.all_reduce(self.stage.wte.weight.grad, group=self.ends)
        squares = sum(p.grad.pow(2).sum() for name, p in self.stage.named_parameters() if first or not last or name != "wte.weight")
        dist.all_reduce(squares)
        scale = min(1.0, 1.0 / (squares.sqrt().item() + 1e-6))
        for p in self.stage.parameters():
            p.grad.mul_(scale)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for send in sends:
            send.wait()


class DataParallel:
    def __init__(self, mode, layers, hidden, context, micros):
        model = Stage(0, layers, layers, hidden, context)
        self.average = mode == "average"
        self.parameters = list(model.parameters())
        for p in self.parameters:
            dist.broadcast(p.data, 0)
        if self.average:
            self.model = model
        else:
            self.model = nn.parallel.DistributedDataParallel(model)
        if mode == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        self.optimizer = adamw(model)
        world = dist.get_world_size()
        self.mine = [m for m in range(micros) if m % world == dist.get_rank()]
        self.steps = 0

    def step(self, text):
        for m in self.mine:
            last = m == self.mine[-1]
            with contextlib.nullcontext() if last or self.average else self.model.no_sync():
                (self.model(None, text[m][:, :-1], text[m][:, 1:]) / len(self.mine)).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        if self.average and self.steps % AVERAGE_EVERY == 0:
            flat = torch.cat([p.data.view(-1) for p in self.parameters])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            at = 0
            for p in self.parameters:
                p.data.copy_(flat[at:at + p.numel()].view_as(p))
                at += p.numel()


class Hivemind:
    """hivemind counts samples, not steps: a round ends when all peers together have made those of AVERAGE_EVERY steps."""

    def __init__(self, layers, hidden, context, micro, micros):
        import hivemind
        rank, world = dist.get_rank(), dist.get_world_size()
        self.model = Stage(0, layers, layers, hidden, context)
        for p in self.model.parameters():
            dist.broadcast(p.data, 0)
        first = [None]
        if rank == 0:
            self.dht = hivemind.DHT(host_maddrs=[f"/ip4/{os.environ['MASTER_ADDR']}/tcp/0"], start=True)
            first = [[str(address) for address in self.dht.get_visible_maddrs()]]
        dist.broadcast_object_list(first, 0)
        if rank != 0:
            self.dht = hivemind.DHT(host_maddrs=["/ip4/0.0.0.0/tcp/0"], initial_peers=first[0], start=True)
        self.mine = [m for m in range(micros) if m % world == rank]
        self.optimizer = hivemind.Optimizer(
            dht=self.dht, run_id="versus", optimizer=adamw(self.model), use_local_updates=True, batch_size_per_step=micro * len(self.mine),
            target_batch_size=micro * micros * AVERAGE_EVERY, matchmaking_time=1.0, averaging_timeout=120,
            state_averaging_compression=hivemind.compression.Float16Compression())

    def step(self, text):
        for m in self.mine:
            (self.model(None, text[m][:, :-1], text[m][:, 1:]) / len(self.mine)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self):
        self.optimizer.shutdown()
        self.dht.shutdown()


def interface():
    """The network interface of this node that has an address and is not the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
            except OSError:
                continue
            if name != "lo":
                return name
    sys.exit("this node has no interface with an address")


def main():
    mode = sys.argv[1]
    steps, layers, hidden, context, micro, micros = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface())
    dist.init_process_group("gloo")
    if mode == "gpipe":
        trainer = GPipe(layers, hidden, context, micro, micros)
    elif mode == "hivemind":
        trainer = Hivemind(layers, hidden, context, micro, micros)
    else:
        trainer = DataParallel(mode, layers, hidden, context, micros)
    data = torch.Generator().manual_seed(2)
    start = 0.0
    for step in range(steps):
        if step == WARM_UP:
            dist.barrier()
            start = time.monotonic()
        trainer.step(torch.randint(VOCABULARY, (micros, micro, context + 1), generator=data))
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": time.monotonic() - start, "steps": steps - WARM_UP, "torch": torch.__version__}), flush=True)
    if mode == "hivemind":
        rounds = trainer.optimizer.local_epoch
        trainer.close()
        if rounds < steps // AVERAGE_EVERY:
            sys.exit(f"hivemind averaged {rounds} times in {steps} steps")


if __name__ == "__main__":
    main()
