#!/usr/bin/env python3
"""Tokens/s, bytes and loss of one chain of stages, of replicas and of local steps on the same daemons and links.

    sudo tests/bench/replicas_bench.py [--bin build/bin] [--links 100Mbit,20Mbit] [--steps 40] [--only "NAME;..."] [--json FILE]

The programs run as a user runs them (isthmus testnet: a coordinator and four daemons as processes on the WAN emulator, one compute thread
each; links of 20 ms round trip). A GPT of 8 layers x 128 on sentences of a small grammar, 32 samples of 64 tokens a step, codecs of boundaries by `auto`.
tokens/s is the median of the steps after the first; with local steps the mean, since agreements come now and then. Bytes are those of all links in a step, in the mean.
Figures of one run are comparable with each other; on a machine with fewer cores than daemons the daemons share them, in every row alike.
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
from wan_bench import records_of  # noqa: E402

CONTEXT, BATCH = 64, 32
LOCAL = {"local_steps": 10, "outer_learning_rate": 0.7, "outer_momentum": 0.5}
STREAMING = {**LOCAL, "fragments": 2, "fragment_delay": 3}
FOUR_BITS = "quant(4, token, symmetric)"
REDUCTIONS = {  # what replicas exchange: (gradients, more of strategy, more of recipe)
    "none": ("none", {}, {}),
    "bf16": ("bf16", {}, {}),
    "quant(4)": (FOUR_BITS, {}, {}),
    "ef(lowrank(4))": ("ef(lowrank(4))", {}, {}),
    "ef(topk(0.02))": ("ef(topk(0.02))", {}, {}),
    "cocktail": ("ef(cocktail(0.1, 0.2, 4))", {}, {}),
    "quantized_adam": (f"ef({FOUR_BITS})", {}, {"optimizer": "quantized_adam"}),
    "local 10, none": ("none", LOCAL, {}),
    "local 10, quant(4)": (FOUR_BITS, LOCAL, {}),
    "streaming, none": ("none", STREAMING, {}),
    "streaming, quant(4)": (FOUR_BITS, STREAMING, {}),
}
ROWS = {  # name: (replicas, stages, (gradients, more of strategy, more of recipe))
    "1 x 4": (1, 4, (None, {}, {})),
    "1 x 1": (1, 1, (None, {}, {})),
    "2 x 2, none": (2, 2, REDUCTIONS["none"]),
    "2 x 2, auto": (2, 2, ("auto", {}, {})),
    "2 x 2, local 10, quant(4)": (2, 2, REDUCTIONS["local 10, quant(4)"]),
    **{f"{replicas} x 1, {name}": (replicas, 1, reduction) for replicas in (2, 4) for name, reduction in REDUCTIONS.items()},
}


def write_text(path, size=400000):
    nouns = "river bridge lantern harbour orchard miller window letter garden winter".split()
    verbs = "finds carries leaves follows remembers paints answers crosses".split()
    state, out, length = 12345, [], 0
    while length < size:
        words = []
        for choices in (nouns, verbs, nouns, nouns, verbs, nouns):
            state = (state * 1103515245 + 12345) % (1 << 31)
            words.append(choices[(state >> 16) % len(choices)])
        out.append("The {} {} the {} and the {} {} a {}.\n".format(*words))
        length += len(out[-1])
    with open(path, "w") as f:
        f.write("".join(out)[:size])


def run_job(bin_dir, job, name, link, directory, nodes=4):
    """Runs it on so many daemons on the emulator; its step records, those after the first, and its plan."""
    path = os.path.join(directory, "job.yaml")
    with open(path, "w") as f:
        json.dump(job, f)  # JSON is YAML
    run_dir = tempfile.mkdtemp(dir=directory)
    rate = [] if link == "unshaped" else ["--rate", link]
    r = subprocess.run([f"{bin_dir}/isthmus", "testnet", "--nodes", str(nodes), "--delay", "10ms", "--mtu", "9000", *rate, "--data-dir", directory,
                        "--run-dir", run_dir, "--json", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=7200)
    if r.returncode != 0:
        sys.exit(f"testnet failed ({r.returncode}) for {name} on {link}:\n{r.stderr[-3000:]}")
    records, plan = records_of(bin_dir, os.path.join(run_dir, "coordinator"), "bench")
    later = [x for x in records if int(x["step"]) > 1]
    return records, later, plan


def figures(name, link, seconds, records, later, plan):
    validation = [x["validation_loss"] for x in records if x.get("has_validation_loss")]
    return {"row": name, "link": link, "tokens_per_s": BATCH * CONTEXT / seconds, "predicted_tokens_per_s": BATCH * CONTEXT / plan["predicted_step_s"],
            "wire_bytes_a_step": statistics.mean(int(x["wire_bytes"]) for x in later), "validation_loss": validation[-1] if validation else None}


def run_row(bin_dir, name, link, steps, directory):
    replicas, stages, (gradients, more, recipe) = ROWS[name]
    job = {
        "name": "bench", "seed": 1, "model": {"layers": 8, "hidden": 128, "heads": 4, "context": CONTEXT}, "data": {"path": "text.txt"},
        "recipe": {"steps": steps, "global_batch": BATCH, "micro_batch": 4, "learning_rate": 2e-3, "eval_samples": 64, **recipe},
        "strategy": {"stages": stages, "replicas": replicas, **more}, "checkpoint": {"every": 0},
    }
    if gradients:
        job["compression"] = {"gradients": gradients}
    records, later, plan = run_job(bin_dir, job, name, link, directory)
    seconds = (statistics.mean if more else statistics.median)(x["step_s"] for x in later)
    return {**figures(name, link, seconds, records, later, plan), "gradients": plan["job"]["compression"].get("gradients")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--links", default="100Mbit,20Mbit")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", help="names of rows: " + "; ".join(ROWS), default=";".join(ROWS))
    parser.add_argument("--json")
    args = parser.parse_args()
    unknown = [name for name in args.only.split(";") if name not in ROWS]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are: {'; '.join(ROWS)}")
    rows = []
    print(f"{'row':27} {'link':>9} {'tokens/s':>9} {'predicted':>9} {'bytes/step':>11} {'validation':>10}")
    with tempfile.TemporaryDirectory(prefix="isthmus-replicas-") as directory:
        write_text(os.path.join(directory, "text.txt"))
        for link in args.links.split(","):
            for name in args.only.split(";"):
                row = run_row(args.bin, name, link, args.steps, directory)
                rows.append(row)
                print(f"{row['row']:27} {link:>9} {row['tokens_per_s']:9.0f} {row['predicted_tokens_per_s']:9.0f} "
                      f"{row['wire_bytes_a_step']:11.0f} {row['validation_loss']:10.4f}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
