#!/usr/bin/env python3
"""Tokens/s of a two-stage pipeline for each codec and link, beside the bound that compute and bytes set.

    sudo tests/bench/wan_bench.py [--bin build/bin] [--codecs none,bf16,...] [--links unshaped,100Mbit,20Mbit,5Mbit] [--micros 64] [--json FILE]

The programs run as a user runs them (isthmus testnet: coordinator and two daemons as processes on the WAN emulator, one compute thread each).
Links have 20 ms of round trip. A delta run counts its warm steps alone: those after the first pass over the text.

bound = min(compute alone, link bytes):
  compute alone  tokens of a step / (compute of the slowest stage in a step x (micro-batches + stages - 1) / micro-batches), from the run itself
  link bytes     tokens of a step / (bytes of the busier direction of the link in a step x 8 / rate), headers included
ratio = tokens/s / bound. Figures of one run are comparable with each other; other load on the machine shows in compute.
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
CODECS = {
    "none": ("none", "none"),
    "bf16": ("bf16", "bf16"),
    "quant fw3bw6": ("quant(3)", "quant(6)"),
    "delta fw3bw6": ("delta(quant(3))", "quant(6)"),
}
STAGES, CONTEXT, MICRO = 2, 128, 4
EPOCH_STEPS = 2  # of the small text: later steps are warm


def write_text(path, batch):
    words = "stone river bridge lamp harbour wind letter road garden tower".split()
    state, out, size = 7, [], 0
    want = CONTEXT * (batch * EPOCH_STEPS + batch // 8 + 2)
    while size < want:
        state = (state * 1103515245 + 12345) % (1 << 31)
        out.append(words[(state >> 16) % len(words)])
        size += len(out[-1]) + 1
    with open(path, "w") as f:
        f.write(" ".join(out)[:want])


def write_job(path, codec, steps, batch):
    forward, backward = CODECS[codec]
    job = {
        "name": "bench", "seed": 1, "model": {"layers": 4, "hidden": 128, "heads": 4, "context": CONTEXT},
        "data": {"path": "text.txt", "validation_share": 0.05},
        "recipe": {"steps": steps, "global_batch": batch, "micro_batch": MICRO, "learning_rate": 1e-3, "eval_samples": 4},
        "strategy": {"stages": STAGES, "layers_per_stage": [2, 2], "schedule": "1f1b", "queue_limit": 8},
        "compression": {"forward": forward, "backward": backward, "tied": "none | zstd" if codec == "none" else "bf16 | zstd"},
        "checkpoint": {"every": 0},
    }
    with open(path, "w") as f:
        json.dump(job, f)  # JSON is YAML


def records_of(bin_dir, state_dir, job):
    """The step records, through a coordinator started on the run's state directory."""
    coordinator = subprocess.Popen([f"{bin_dir}/isthmus-coordinator", "--listen", "127.0.0.1:0", "--http", "", "--state-dir", state_dir],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        words = coordinator.stdout.readline().split()
        address = words[words.index("on") + 1]
        out = subprocess.run([f"{bin_dir}/isthmus", "--coordinator", address, "logs", job, "--json"], check=True,
                             stdout=subprocess.PIPE, text=True, timeout=60).stdout
        return [json.loads(line) for line in out.splitlines() if line.strip()]
    finally:
        coordinator.terminate()
        coordinator.wait()


def run_cell(bin_dir, codec, link, micros, directory):
    slow = link.startswith("5M") and codec in ("none", "bf16")
    warm_from = EPOCH_STEPS if "delta" in codec else 1
    steps = warm_from + (3 if slow else 8)
    write_text(os.path.join(directory, "text.txt"), micros * MICRO)
    job = os.path.join(directory, "job.yaml")
    write_job(job, codec, steps, micros * MICRO)
    run_dir = os.path.join(directory, f"{codec}-{link}".replace(" ", "-"))
    rate = [] if link == "unshaped" else ["--rate", link]
    r = subprocess.run([f"{bin_dir}/isthmus", "testnet", "--nodes", str(STAGES), "--delay", "10ms", "--mtu", "9000", *rate,
                        "--data-dir", directory, "--run-dir", run_dir, "--json", job],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1200)
    if r.returncode != 0:
        sys.exit(f"testnet failed ({r.returncode}) for {codec} on {link}:\n{r.stderr[-3000:]}")
    summary = json.loads(r.stdout)
    records = [x for x in records_of(bin_dir, os.path.join(run_dir, "coordinator"), "bench") if int(x.get("step", 0)) >= warm_from]
    seconds = statistics.median(x["step_s"] for x in records)
    compute = statistics.median(x["compute_s"] for x in records)
    tokens = micros * MICRO * CONTEXT
    # Busier direction, from the codec's shares of the wire bytes of a warm step.
    share = max(int(b["wire_bytes"]) for b in summary["boundaries"] if b["link_id"] == "b0")
    total = sum(int(b["wire_bytes"]) for b in summary["boundaries"])
    wire = statistics.median(int(x["wire_bytes"]) for x in records)
    if "delta" in codec:  # the totals hold the cold steps too: take the backward direction, which is the busier one when warm
        backward = [int(b["wire_bytes"]) for b in summary["boundaries"] if b["link_id"] == "b0" and b["direction"] == "backward"][0]
        tied = sum(int(b["wire_bytes"]) for b in summary["boundaries"] if b["link_id"] != "b0")
        busier = (backward + tied / 2) / steps
    else:
        busier = wire * (share + sum(int(b["wire_bytes"]) for b in summary["boundaries"] if b["link_id"] != "b0") / 2) / total
    by_compute = tokens / (compute * (micros + STAGES - 1) / micros)
    by_link = float("inf") if link == "unshaped" else tokens / (busier * 8 / parse_rate(link))
    bound = min(by_compute, by_link)
    return {"codec": codec, "link": link, "tokens_per_s": tokens / seconds, "compute_bound": by_compute,
            "link_bound": None if link == "unshaped" else by_link, "bound": bound, "ratio": tokens / seconds / bound,
            "step_s": seconds, "compute_s": compute, "wire_bytes_a_step": wire}


def parse_rate(text):
    return float(text.replace("Mbit", "")) * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--links", default="unshaped,100Mbit,20Mbit,5Mbit")
    parser.add_argument("--micros", type=int, default=64, help="micro-batches a step")
    parser.add_argument("--json", help="write the cells there")
    args = parser.parse_args()
    cells = []
    print(f"{'codec':14} {'link':>9} {'tokens/s':>9} {'compute':>9} {'link':>9} {'bound':>9} {'ratio':>6}  step s  wire bytes a step")
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as directory:
        for codec in args.codecs.split(","):
            for link in args.links.split(","):
                c = run_cell(args.bin, codec, link, args.micros, directory)
                cells.append(c)
                by_link = "-" if c["link_bound"] is None else f"{c['link_bound']:.0f}"
                print(f"{codec:14} {link:>9} {c['tokens_per_s']:9.0f} {c['compute_bound']:9.0f} {by_link:>9} {c['bound']:9.0f} "
                      f"{c['ratio']:6.2f}  {c['step_s']:6.2f}  {c['wire_bytes_a_step']:.0f}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(cells, f, indent=1)


if __name__ == "__main__":
    main()
