#!/usr/bin/env python3
"""Seconds to an accuracy of data parallel training, local SGD, DiLoCo and independent subnetworks (IST), on the same daemons and links.

    sudo tests/bench/ist_bench.py [--layers 2,3] [--workers 2,4,8] [--links 100Mbit,10Mbit] [--target 0.9] [--seeds 1] [--only "NAME;..."] [--json FILE]

The programs run as a user runs them (isthmus testnet: a coordinator and a daemon of one thread a worker, as processes on the WAN emulator; links of 20 ms round trip).
An MLP (--hidden units in each hidden layer) on the 5,000 digits of `deploy/fetch-data.sh --only mnist` (--data: where they are; fetched if left out), a tenth of them for validation;
128 samples a step, AdamW at a constant rate, one agreement or deal in --round steps. Rows come as they are measured, one a seed.

    steps     until a validation of the whole model, which is made after every --round steps, first has the accuracy; '-': not within --steps
    seconds   these steps by the mean seconds of a step in rounds without a validation: subnetworks come together for one, which costs them more than others
    a step    that mean; bytes: of all links, of the same rounds, a step; last: the accuracy of the last validation

On a machine with fewer cores than workers these share them, in every row alike.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
from replicas_bench import run_job  # noqa: E402

BATCH = 128
MEAN = {"outer_learning_rate": 1, "outer_momentum": 0}
ROWS = {  # name: (makes local steps, strategy, gradients)
    "data parallel": (False, {}, "none"),
    "data parallel, bf16": (False, {}, "bf16"),
    "local SGD": (True, MEAN, "none"),
    "DiLoCo": (True, {"outer_learning_rate": 0.7, "outer_momentum": 0.9}, "none"),
    "DiLoCo, quant(8)": (True, {"outer_learning_rate": 0.7, "outer_momentum": 0.9}, "ef(quant(8, token, symmetric))"),
    "IST": (True, {"subnetworks": "units"}, "none"),
    "IST, bf16": (True, {"subnetworks": "units"}, "bf16"),
}


def make_job(args, name, layers, workers, seed):
    local, strategy, gradients = ROWS[name]
    return {
        "name": "bench", "seed": seed, "model": {"family": "mlp", "layers": layers, "hidden": args.hidden, "inputs": 784, "classes": 10},
        "data": {"path": "mnist.bin", "validation_share": 0.1},
        "recipe": {"steps": args.steps if local else min(args.steps, args.data_parallel_steps), "global_batch": BATCH, "micro_batch": BATCH // workers,
                   "learning_rate": args.rate, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0, "eval_every": 2 * args.round, "eval_samples": 500},
        "strategy": {"stages": 1, "replicas": workers, **({"local_steps": args.round} if local else {}), **strategy},
        "compression": {"gradients": gradients}, "checkpoint": {"every": 0},
    }


def run_row(args, name, layers, workers, link, seed, directory):
    job = make_job(args, name, layers, workers, seed)
    records, later, _ = run_job(args.bin, job, name, link, directory, nodes=workers)
    # A round whose end validates is left out, and the round after it, in which others wait for the validation.
    rounds = {}
    for x in later:
        rounds.setdefault((int(x["step"]) - 1) // args.round, []).append(x)
    validated = {r for r, steps in rounds.items() if any(x.get("has_validation_loss") for x in steps)}
    plain = [x for r, steps in rounds.items() if r not in validated and len(steps) == args.round for x in steps]
    a_step = statistics.mean(x["step_s"] for x in plain)
    accuracy = {int(x["step"]): x["validation_accuracy"] for x in records if "validation_accuracy" in x}
    reached = [step for step, share in sorted(accuracy.items()) if share >= args.target]
    return {"row": name, "layers": layers, "workers": workers, "link": link, "seed": seed, "steps": reached[0] if reached else None,
            "seconds": reached[0] * a_step if reached else None, "a_step_s": a_step,
            "wire_bytes_a_step": statistics.mean(int(x["wire_bytes"]) for x in plain), "last": accuracy[max(accuracy)], "accuracy": accuracy}


def get_data(args, directory):
    if args.data:
        shutil.copy(os.path.join(args.data, "mnist.bin"), directory)
    else:
        subprocess.run([os.path.join(ROOT, "deploy", "fetch-data.sh"), directory, "--only", "mnist"], check=True, stdout=subprocess.DEVNULL)


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--data", help="directory with mnist.bin")
    parser.add_argument("--layers", type=numbers, default=[2, 3])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--workers", type=numbers, default=[2, 4, 8])
    parser.add_argument("--links", default="100Mbit,10Mbit")
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--round", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--data-parallel-steps", type=int, default=120)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", help="names of rows: " + "; ".join(ROWS), default=";".join(ROWS))
    parser.add_argument("--json")
    args = parser.parse_args()
    unknown = [name for name in args.only.split(";") if name not in ROWS]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are: {'; '.join(ROWS)}")
    rows = []
    print(f"{'layers':>6} {'workers':>7} {'link':>8}  {'row':20} {'seed':>4} {'steps':>5} {'seconds':>8} {'a step':>8} {'bytes/step':>11} {'last':>6}")
    with tempfile.TemporaryDirectory(prefix="isthmus-ist-") as directory:
        get_data(args, directory)
        for layers in args.layers:
            for workers in args.workers:
                for link in args.links.split(","):
                    for name in args.only.split(";"):
                        for seed in range(1, args.seeds + 1):
                            row = run_row(args, name, layers, workers, link, seed, directory)
                            rows.append(row)
                            steps = "-" if row["steps"] is None else row["steps"]
                            seconds = "-" if row["seconds"] is None else f"{row['seconds']:.2f}"
                            print(f"{layers:6} {workers:7} {link:>8}  {name:20} {seed:4} {steps:>5} {seconds:>8} {row['a_step_s']:8.4f} "
                                  f"{row['wire_bytes_a_step']:11.0f} {row['last']:6.3f}", flush=True)
                            if args.json:
                                with open(args.json, "w") as f:
                                    json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
