#!/usr/bin/env python3
"""Wall time until a run reaches the validation loss that the uncompressed run ends with, on the same daemons and links, codec by codec.

    sudo tests/bench/time_to_loss.py [--bin build/bin] [--link 5Mbit] [--steps 400] [--seeds 1,2,3] [--text FILE] [--only "NAME;..."] [--jobs 1] [--json FILE]

isthmus testnet with two daemons, 20 ms of round trip; 2 stages of a GPT of 4 layers x 64, context 64, 8 micro-batches of 4 samples a step on the first book of the
Bible (deploy/fetch-data.sh) or --text: four passes over it. At 5 Mbit/s the link carries fp32 at about a tenth of what two cores compute. Every run validates every 20 steps on 64 samples; seconds are
those of all steps and validations, the first pass of delta codecs included. `final` is the loss after as many steps, against none's.
--jobs runs so many of them at once, for machines with two cores for each.
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
from replicas_bench import run_job  # noqa: E402

EVAL_EVERY, MORE = 20, 1.2  # codecs may take so many more steps
ROWS = {  # name: compression
    "none": {"forward": "none", "backward": "none", "tied": "none"},
    "bf16": {"forward": "bf16", "backward": "bf16"},
    "auto": {},
    "quant 4 / 4": {"forward": "quant(4, token)", "backward": "quant(4, token, symmetric)"},
    "predict 4 / 4": {"forward": "predict(quant(4, token), context=3)", "backward": "predict(quant(4, token, symmetric), context=2, next)"},
    "predict 3 / 4": {"forward": "predict(quant(3, token), context=3)", "backward": "predict(quant(4, token, symmetric), context=2, next)"},
    "delta 3 / 4": {"forward": "delta(quant(3), cold=quant(4))", "backward": "quant(4, token, symmetric)"},
}


def run(args, name, seed, parent):
    directory = tempfile.mkdtemp(dir=parent)
    os.symlink(os.path.join(parent, "text.txt"), os.path.join(directory, "text.txt"))
    steps = args.steps if name == "none" else int(args.steps * MORE) // EVAL_EVERY * EVAL_EVERY
    job = {
        "name": "bench", "seed": seed, "model": {"layers": 4, "hidden": 64, "heads": 4, "context": 64}, "data": {"path": "text.txt"},
        # The learning rate is constant: runs of different lengths are the same run.
        "recipe": {"steps": steps, "global_batch": 32, "micro_batch": 4, "learning_rate": 2e-3, "schedule": "constant", "warmup_steps": 20,
                   "eval_every": EVAL_EVERY, "eval_samples": 64},
        "strategy": {"stages": 2, "layers_per_stage": [2, 2]}, "compression": ROWS[name], "checkpoint": {"every": 0},
    }
    records, _, _ = run_job(args.bin, job, name, args.link, directory, nodes=2)
    seconds, curve, wire = 0.0, [], 0
    for x in sorted(records, key=lambda x: int(x.get("step", 0))):
        seconds += x["step_s"]
        wire += int(x.get("wire_bytes", 0))
        if x.get("has_validation_loss"):
            curve.append((int(x.get("step", 0)), seconds, x["validation_loss"]))
    return {"row": name, "seed": seed, "curve": curve, "wire_bytes_a_step": wire / len(records)}


def reach(curve, loss):
    """Seconds until the loss is there, between two validations by a straight line; None: not reached."""
    before = None
    for _, seconds, at in curve:
        if at <= loss:
            if before is None or before[1] == at:
                return seconds
            return before[0] + (seconds - before[0]) * (before[1] - loss) / (before[1] - at)
        before = (seconds, at)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--link", default="5Mbit")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--text", help="a UTF-8 text; the first book of the Bible if left out")
    parser.add_argument("--only", default=";".join(ROWS), help="names of rows: " + "; ".join(ROWS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--json")
    args = parser.parse_args()
    names = args.only.split(";")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are: {'; '.join(ROWS)}")
    if args.steps < EVAL_EVERY or args.steps % EVAL_EVERY:
        parser.error(f"--steps {args.steps}: a multiple of {EVAL_EVERY}, the steps between two validations")
    names = ["none"] + [name for name in names if name != "none"]
    runs = []
    with tempfile.TemporaryDirectory(prefix="isthmus-loss-") as directory:
        if args.text:
            os.symlink(os.path.abspath(args.text), os.path.join(directory, "text.txt"))
        else:
            subprocess.run([os.path.join(ROOT, "deploy", "fetch-data.sh"), directory, "--only", "bible"], check=True, stdout=subprocess.DEVNULL)
            os.rename(os.path.join(directory, "genesis.txt"), os.path.join(directory, "text.txt"))
        print(f"{'codec':14} {'bytes/step':>11} {'final':>8} {'of none':>8} {'seconds':>9} {'times faster':>12}   of each seed")
        exact = {}
        seeds = [int(seed) for seed in args.seeds.split(",")]
        pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
        began = {(name, seed): pool.submit(run, args, name, seed, directory) for name in names for seed in seeds}
        for name in names:
            ratios, finals, excess, seconds = [], [], [], []
            for seed in seeds:
                r = began[name, seed].result()
                runs.append(r)
                if name == "none":
                    exact[seed] = r["curve"][-1]
                final = [loss for step, _, loss in r["curve"] if step <= args.steps][-1]
                at = reach(r["curve"], exact[seed][2])
                finals.append(final)
                excess.append(final / exact[seed][2] - 1)
                seconds.append(at)
                ratios.append(None if at is None else exact[seed][1] / at)
            each = ", ".join("not reached" if x is None else f"{x:.2f}" for x in ratios)
            done = None not in ratios
            print(f"{name:14} {r['wire_bytes_a_step']:11.0f} {statistics.mean(finals):8.4f} {100 * statistics.mean(excess):+7.2f} % "
                  f"{statistics.mean(seconds) if done else float('nan'):9.1f} {statistics.mean(ratios) if done else float('nan'):12.2f}   {each}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(runs, f, indent=1)


if __name__ == "__main__":
    main()
