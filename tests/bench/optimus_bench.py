#!/usr/bin/env python3
"""Tokens/s, bytes and loss of the parts of Optimus-CC (compress/OPTIMUS.md), one after the other, on the same daemons and links.

    sudo tests/bench/optimus_bench.py [--bin build/bin] [--links 100Mbit] [--steps 40] [--rank 8] [--seeds 1] [--only "NAME;..."] [--json FILE]

As in replicas_bench.py: isthmus testnet, four daemons of one compute thread, links of 20 ms round trip, two replicas of two stages of a GPT of
8 layers x 128, 32 samples of 64 tokens a step in micro-batches of 2. Activations and the tied embedding go as fp32 in every row. tokens/s is the median
of the steps after the first. `cosine` is the mean of the later half of the run: of the error that lep leaves to the difference of activations.
With --seeds 3 each row is run three times: figures are means, and `+-` is half of what the validation losses differ by at most. Rows that name
a link have that one: on 1 Gbit/s compute hides the gradients before the epilogue, so that its codec alone shows.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
from replicas_bench import BATCH, CONTEXT, figures, run_job, write_text  # noqa: E402


FAST = ", 1Gbit"  # ends the name of a row that has this link, whatever --links says


def rows_of(rank):
    low = f"lowrank({rank})"
    lazy = {"backward": f"lep({low})", "backward_when": "epilogue"}
    return {
        "nothing": {},
        "backward all": {"backward": low},
        "backward epilogue": {"backward": low, "backward_when": "epilogue"},
        "epilogue, lep": lazy,
        "... + gradients of 1 stage": {**lazy, "gradients": f"ef({low})", "gradient_stages": 1},
        "... + gradients of all": {**lazy, "gradients": f"ef({low})"},
        "all, lep + gradients of all": {"backward": f"lep({low})", "gradients": f"ef({low})"},
        "nothing" + FAST: {},
        "backward all" + FAST: {"backward": low},
        "backward epilogue" + FAST: {"backward": low, "backward_when": "epilogue"},
        "epilogue, lep" + FAST: lazy,
    }


def run_row(bin_dir, name, compression, link, steps, directory, seed):
    job = {
        "name": "bench", "seed": seed, "model": {"layers": 8, "hidden": 128, "heads": 4, "context": CONTEXT}, "data": {"path": "text.txt"},
        "recipe": {"steps": steps, "global_batch": BATCH, "micro_batch": 2, "learning_rate": 2e-3, "eval_samples": 64},
        "strategy": {"stages": 2, "replicas": 2}, "checkpoint": {"every": 0},
        "compression": {"forward": "none", "backward": "none", "evaluation": "none", "tied": "none", "gradients": "none", **compression},
    }
    records, later, plan = run_job(bin_dir, job, name, link, directory)
    seconds = statistics.median(x["step_s"] for x in later)
    cosines = [e.get("cosine", 0) for x in later[len(later) // 2:] for e in x.get("lazy_errors", [])]
    return {**figures(name, link, seconds, records, later, plan), "cosine": statistics.mean(cosines) if cosines else None}


def mean_row(runs):
    """One row of the runs of several seeds."""
    row = dict(runs[0])
    for key in ("tokens_per_s", "predicted_tokens_per_s", "wire_bytes_a_step", "validation_loss", "cosine"):
        values = [run[key] for run in runs if run[key] is not None]
        row[key] = statistics.mean(values) if values else None
    losses = [run["validation_loss"] for run in runs]
    return {**row, "seeds": len(runs), "loss_differs_by": (max(losses) - min(losses)) / 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--links", default="100Mbit")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each row, with seeds 1, 2, ... [1]")
    parser.add_argument("--only", help="names of rows: " + "; ".join(rows_of(8)), default=";".join(rows_of(8)))
    parser.add_argument("--json")
    args = parser.parse_args()
    known = rows_of(args.rank)
    unknown = [name for name in args.only.split(";") if name not in known]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are: {'; '.join(known)}")
    if args.seeds < 1:
        parser.error(f"--seeds {args.seeds}: at least one")
    names = args.only.split(";")
    work = [(name, link) for link in args.links.split(",") for name in names if not name.endswith(FAST)]
    work += [(name, "1Gbit") for name in names if name.endswith(FAST)]
    rows = []
    print(f"{'row':28} {'link':>9} {'tokens/s':>9} {'predicted':>9} {'bytes/step':>11} {'validation':>10} {'+-':>6} {'cosine':>7}")
    with tempfile.TemporaryDirectory(prefix="isthmus-optimus-") as directory:
        write_text(os.path.join(directory, "text.txt"))
        for name, link in work:
            row = mean_row([run_row(args.bin, name, known[name], link, args.steps, directory, seed) for seed in range(1, args.seeds + 1)])
            rows.append(row)
            cosine = "" if row["cosine"] is None else f"{row['cosine']:7.3f}"
            differs = "" if args.seeds == 1 else f"{row['loss_differs_by']:6.4f}"
            print(f"{row['row']:28} {link:>9} {row['tokens_per_s']:9.0f} {row['predicted_tokens_per_s']:9.0f} {row['wire_bytes_a_step']:11.0f} "
                  f"{row['validation_loss']:10.4f} {differs:>6} {cosine:>7}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
