#!/usr/bin/env python3
"""Isthmus beside what a user would take instead: PyTorch over gloo, same model, micro-batches and emulated links, in turn in one run.

    sudo tests/bench/versus_torch.py [--bin build/bin] [--links unshaped,100Mbit,20Mbit] [--steps 12] [--python python3] [--only "NAME;..."] [--json FILE]

Four nodes on the WAN emulator, one compute thread each, links of 20 ms round trip; a GPT of 8 layers x 256, context 128, 8 micro-batches of 4 samples a step.
`a chain`: 4 stages; GPipe by isend and irecv (tests/bench/torch_worker.py) against 1F1B here. `replicas`: 4 of the whole model; DistributedDataParallel,
with and without PyTorch's PowerSGD hook of rank 4, against replicas here. `local`: weights averaged every 10 steps in fp32, against `local_steps: 10` with outer_learning_rate 1, and
hivemind.Optimizer with local updates as often (pip install hivemind "numpy<2" into --python's environment; without it the row is left out, and said to be).
Each table's ratio is to the first PyTorch row of its kind on the same link. Needs python3-torch (or --python of an environment that has torch); tokens/s
are the mean of the steps after the second. A row of PyTorch that fails says why, the others go on, and the exit code is 1. On a machine with fewer cores than nodes they share them, in every row alike.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
from replicas_bench import run_job, write_text  # noqa: E402

NODES, LAYERS, HIDDEN, CONTEXT, MICRO, MICROS = 4, 8, 256, 128, 4, 8
WARM_UP = 2
CHAIN, REPLICAS = {"stages": NODES, "layers_per_stage": [LAYERS // NODES] * NODES}, {"stages": 1, "replicas": NODES}
LOCAL = {**REPLICAS, "local_steps": 10, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
NONE = {"forward": "none", "backward": "none"}
ROWS = {  # name: (kind, torch_worker's mode, or strategy and compression)
    "PyTorch GPipe": ("a chain", "gpipe"),
    "chain, none": ("a chain", CHAIN, NONE),
    "chain, auto": ("a chain", CHAIN, {}),
    "PyTorch DDP": ("replicas", "ddp"),
    "PyTorch DDP, PowerSGD": ("replicas", "powersgd"),
    "replicas, none": ("replicas", REPLICAS, NONE),
    "replicas, ef(lowrank(4))": ("replicas", REPLICAS, {"gradients": "ef(lowrank(4))"}),
    "replicas, auto": ("replicas", REPLICAS, {}),
    "PyTorch, averaged every 10": ("local", "average"),
    "hivemind, averaged every 10": ("local", "hivemind"),
    "local 10, none": ("local", LOCAL, NONE),
    "local 10, auto": ("local", LOCAL, {}),
}


def run_torch(args, link, mode, steps):
    rate = [] if link == "unshaped" else ["--rate", link]
    me = [sys.executable, os.path.abspath(__file__), "--bin", args.bin, "--python", args.python]
    r = subprocess.run([f"{args.bin}/isthmus-wan", "--nodes", str(NODES), "--delay", "10ms", "--mtu", "9000", *rate, "--", *me, "--launch", mode, "--steps", str(steps)],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=3600)
    if r.returncode != 0:
        print(f"PyTorch ({mode}) failed ({r.returncode}) on {link}:\n{r.stderr[-3000:]}", file=sys.stderr)
        return None
    said = json.loads(r.stdout.strip().splitlines()[-1])
    return said["seconds"] / said["steps"]


def launch(args):
    """Inside the emulator: one worker a node."""
    nodes = [pair.split("=") for pair in os.environ["ISTHMUS_WAN_NODES"].split(",")]
    shape = [str(n) for n in (args.steps, LAYERS, HIDDEN, CONTEXT, MICRO, MICROS)]
    workers = []
    for rank, (name, _) in enumerate(nodes):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(nodes)), "MASTER_ADDR": nodes[0][1], "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}
        workers.append(subprocess.Popen([f"{args.bin}/isthmus-wan", "exec", name, "--", args.python, os.path.join(HERE, "torch_worker.py"), args.launch, *shape], env=env))
    return max(worker.wait() for worker in workers)


def run_ours(args, name, link, strategy, compression, steps, directory):
    job = {
        "name": "bench", "seed": 1, "model": {"layers": LAYERS, "hidden": HIDDEN, "heads": 4, "context": CONTEXT}, "data": {"path": "text.txt"},
        "recipe": {"steps": steps, "global_batch": MICRO * MICROS, "micro_batch": MICRO, "learning_rate": 1e-3, "eval_samples": 4},
        "strategy": strategy, "compression": compression, "checkpoint": {"every": 0},
    }
    records, _, _ = run_job(args.bin, job, name, link, directory, NODES)
    return statistics.mean(x["step_s"] for x in records if int(x["step"]) >= WARM_UP)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--links", default="unshaped,100Mbit,20Mbit")
    parser.add_argument("--steps", type=int, default=12, help="of each row, two of them to warm up")
    parser.add_argument("--python", default="python3", help="that has torch")
    parser.add_argument("--only", default=";".join(ROWS), help="names of rows: " + "; ".join(ROWS))
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps {args.steps}: {WARM_UP} are the warm-up; take more")
    if args.launch:
        sys.exit(launch(args))
    unknown = [name for name in args.only.split(";") if name not in ROWS]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are: {'; '.join(ROWS)}")
    if subprocess.run([args.python, "-c", "import torch.distributed"], capture_output=True).returncode != 0:
        parser.error(f"{args.python} has no torch: install python3-torch, or name another one with --python")
    names = args.only.split(";")
    if any("hivemind" in name for name in names) and subprocess.run([args.python, "-c", "import hivemind"], capture_output=True).returncode != 0:
        print(f"{args.python} has no hivemind: its row is left out")
        names = [name for name in names if "hivemind" not in name]
    rows, yardstick, failed = [], {}, []
    print(f"{'row':27} {'link':>9} {'step s':>8} {'tokens/s':>9} {'of PyTorch':>10}")
    with tempfile.TemporaryDirectory(prefix="isthmus-versus-") as directory:
        write_text(os.path.join(directory, "text.txt"))
        for link in args.links.split(","):
            for name in names:
                kind, what, *compression = ROWS[name]
                # Averages of local steps come every tenth step: whole rounds are timed.
                steps = WARM_UP + -(-(args.steps - WARM_UP) // 10) * 10 if kind == "local" else args.steps
                seconds = run_torch(args, link, what, steps) if isinstance(what, str) else run_ours(args, name, link, what, compression[0], steps, directory)
                if seconds is None:
                    failed.append(name)
                    continue
                if isinstance(what, str):
                    yardstick.setdefault((kind, link), seconds)
                ratio = yardstick[kind, link] / seconds if (kind, link) in yardstick else None
                rows.append({"row": name, "link": link, "step_s": seconds, "tokens_per_s": MICRO * MICROS * CONTEXT / seconds, "ratio": ratio})
                print(f"{name:27} {link:>9} {seconds:8.3f} {rows[-1]['tokens_per_s']:9.0f} {'' if ratio is None else f'{ratio:10.2f}'}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
