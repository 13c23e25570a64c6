#!/usr/bin/env python3
"""What a step takes where all links of a daemon share its uplink: daemons that are told its rate (isthmusd --uplink) beside daemons that are not.

    sudo tests/bench/uplink_bench.py [--bin build/bin] [--uplink 20Mbit] [--delay 20ms] [--steps 32] [--only "NAME;..."] [--control cubic] [--json FILE]

A GPT of 8 layers x 128 in two stages, 32 samples of 64 tokens a step and replica, activations in fp32; one compute thread a daemon (isthmus testnet). `checkpoints` is one replica with a
checkpoint every 20 steps: its row is the mean of the steps, and of the six after the checkpoint of step 20. The others are two replicas: gradients in each step, or fragments of weights that cross beside
the steps; mean of the steps after the first and before the last. --control sets the host's congestion control, which the nodes take over.
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
from replicas_bench import STREAMING, write_text  # noqa: E402
from wan_bench import records_of  # noqa: E402

ROWS = {  # name: (replicas, more of strategy, gradients, checkpoint every)
    "checkpoints": (1, {}, None, 20),
    "gradients, none": (2, {}, "none", 0),
    "gradients, bf16": (2, {}, "bf16", 0),
    "streaming, none": (2, STREAMING, "none", 0),
}


def untold(bin_dir, directory):
    """The programs, with daemons that leave --uplink out."""
    for name in ("isthmus", "isthmus-coordinator", "isthmus-wan"):
        shutil.copy(os.path.join(bin_dir, name), directory)
    daemon = os.path.join(directory, "isthmusd")
    with open(daemon, "w") as f:
        f.write('#!/bin/bash\na=()\nwhile [ $# -gt 0 ]; do if [ "$1" = --uplink ]; then shift 2; else a+=("$1"); shift; fi; done\n'
                f'exec {os.path.abspath(bin_dir)}/isthmusd "${{a[@]}}"\n')
    os.chmod(daemon, 0o755)
    return directory


def steps_of(bin_dir, row, args, directory):
    replicas, more, gradients, every = ROWS[row]
    job = {
        "name": "bench", "seed": 1, "model": {"layers": 8, "hidden": 128, "heads": 4, "context": 64}, "data": {"path": "text.txt"},
        "recipe": {"steps": args.steps, "global_batch": 32 * replicas, "micro_batch": 4, "learning_rate": 2e-3, "eval_samples": 4},
        "strategy": {"stages": 2, "replicas": replicas, **more}, "checkpoint": {"every": every},
        "compression": {"forward": "none", "backward": "none", "tied": "bf16", **({"gradients": gradients} if gradients else {})},
    }
    run_dir = tempfile.mkdtemp(dir=directory)
    path = os.path.join(run_dir, "job.yaml")
    with open(path, "w") as f:
        json.dump(job, f)  # JSON is YAML
    r = subprocess.run([f"{bin_dir}/isthmus", "testnet", "--nodes", str(2 * replicas), "--delay", args.delay, "--mtu", "9000", "--uplink", args.uplink, "--data-dir", directory,
                        "--run-dir", os.path.join(run_dir, "run"), "--json", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=3600)
    if r.returncode != 0:
        sys.exit(f"testnet failed ({r.returncode}) for {row}:\n{r.stderr[-3000:]}")
    records, _ = records_of(bin_dir, os.path.join(run_dir, "run", "coordinator"), "bench")
    return [x["step_s"] for x in records]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--uplink", default="20Mbit")
    parser.add_argument("--delay", default="20ms")
    parser.add_argument("--steps", type=int, default=32, help="more than 26")
    parser.add_argument("--only", help="names of rows: " + "; ".join(ROWS), default=";".join(ROWS))
    parser.add_argument("--control")
    parser.add_argument("--json")
    args = parser.parse_args()
    unknown = [name for name in args.only.split(";") if name not in ROWS]
    if unknown or args.steps < 27:
        parser.error(f"no row is called {unknown[0]!r}; there are: {'; '.join(ROWS)}" if unknown else "--steps must be 27 or more")
    if args.control:
        subprocess.run(["sysctl", "-qw", f"net.ipv4.tcp_congestion_control={args.control}"], check=True)
    figures = []
    print(f"{'row':18} {'daemons':8} {'s a step':>9} {'after a checkpoint':>19}")
    with tempfile.TemporaryDirectory(prefix="isthmus-uplink-") as directory:
        write_text(os.path.join(directory, "text.txt"))
        programs = {"untold": untold(args.bin, tempfile.mkdtemp(dir=directory)), "told": args.bin}
        for row in args.only.split(";"):
            for name, bin_dir in programs.items():
                steps = steps_of(bin_dir, row, args, directory)
                after = statistics.mean(steps[20:26]) if ROWS[row][3] else None
                figures.append({"row": row, "daemons": name, "mean_s": statistics.mean(steps[1:-1]), "after_s": after, "steps": steps})
                print(f"{row:18} {name:8} {figures[-1]['mean_s']:9.2f} {'' if after is None else f'{after:19.2f}'}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(figures, f, indent=1)


if __name__ == "__main__":
    main()
