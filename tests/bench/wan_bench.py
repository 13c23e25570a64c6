#!/usr/bin/env python3
"""Tokens/s of a pipeline for each codec and link, beside the bound that compute and bytes set and what the plan predicted.

    sudo tests/bench/wan_bench.py [--bin build/bin] [--setting two|four|eight|2x2] [--codecs none,bf16,...] [--links unshaped,100Mbit,20Mbit,5Mbit]
                                  [--schedules 1f1b,overlap] [--delay 10ms] [--micros N] [--rounds 1] [--jobs 1] [--json FILE]

The programs run as a user runs them (isthmus testnet: coordinator and daemons as processes on the WAN emulator, one compute thread each).
Links have twice --delay of round trip. A delta run counts its warm steps alone: those after the first pass over the text.
`two` is 2 stages of a GPT of 4 layers x 128, 64 micro-batches; `four` is 4 stages of 8 x 256, 8 micro-batches; `eight` is 8 stages of 8 x 64, 32 micro-batches,
where most of a step is latency; `2x2` is 2 replicas of 2 stages of 8 x 128, 16 micro-batches each, gradients exchanged as bf16 (fp32 beside `none`). --jobs runs so many
cells at once, for machines with more cores than a cell has daemons. With several rounds every
cell is run so often, in turn, and the fastest run of each counts: other load on the machine only ever adds.
`auto` says nothing of codecs: what the planner then chose is printed, and with it how far it is from the best other codec of its link.

bound = min(compute alone, link bytes):
  compute alone  tokens of a step / (compute of the slowest stage in a step x (micro-batches + stages - 1) / micro-batches), from the run itself;
                 with overlapped steps there is no fill and drain in it: x 1
  link bytes     tokens of a step / (bytes of the busier direction of the link in a step x 8 / rate), headers included; of 2x2, the busier
                 one of a boundary and of what is left of a step's bytes (gradients and the tied embedding) on the pair of daemons of a stage
ratio = tokens/s / bound. Figures of one run are comparable with each other; other load on the machine shows in compute.
"""
import argparse
import concurrent.futures
import itertools
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
    "quant fw8bw8": ("quant(8)", "quant(8)"),
    "quant fw4bw6": ("quant(4)", "quant(6)"),
    "auto": (None, None),
}
LADDER = "none,bf16,quant fw8bw8,quant fw4bw6,auto"
DEFAULT_CODECS = {"two": "none,bf16,quant fw3bw6,delta fw3bw6", "four": LADDER, "eight": LADDER, "2x2": LADDER}
SETTINGS = {  # stages, layers, hidden, micro-batches of a replica, replicas
    "two": (2, 4, 128, 64, 1),
    "four": (4, 8, 256, 8, 1),
    "2x2": (2, 8, 128, 16, 2),
    "eight": (8, 8, 64, 32, 1),  # little to compute: latency is what a step has
}
CONTEXT, MICRO = 128, 4
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


def write_job(path, setting, codec, steps, batch, schedule):
    forward, backward = CODECS[codec]
    stages, layers, hidden, _, replicas = SETTINGS[setting]
    job = {
        "name": "bench", "seed": 1, "model": {"layers": layers, "hidden": hidden, "heads": 4, "context": CONTEXT},
        "data": {"path": "text.txt", "validation_share": 0.05},
        "recipe": {"steps": steps, "global_batch": batch, "micro_batch": MICRO, "learning_rate": 1e-3, "eval_samples": 4},
        "strategy": {"stages": stages, "replicas": replicas, "layers_per_stage": [layers // stages] * stages, "schedule": schedule, "queue_limit": 8},
        "checkpoint": {"every": 0},
    }
    if codec != "auto":
        job["compression"] = {"forward": forward, "backward": backward, "tied": "none | zstd" if codec == "none" else "bf16 | zstd"}
        if replicas > 1:
            job["compression"]["gradients"] = "none" if codec == "none" else "bf16"
    with open(path, "w") as f:
        json.dump(job, f)  # JSON is YAML


def records_of(bin_dir, state_dir, job):
    """The step records and the plan, through a coordinator started on the run's state directory."""
    coordinator = subprocess.Popen([f"{bin_dir}/isthmus-coordinator", "--listen", "127.0.0.1:0", "--http", "", "--state-dir", state_dir],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        words = coordinator.stdout.readline().split()
        address = words[words.index("on") + 1]
        ask = lambda *words: subprocess.run([f"{bin_dir}/isthmus", "--coordinator", address, *words, "--json"], check=True,
                                            stdout=subprocess.PIPE, text=True, timeout=60).stdout
        records = [json.loads(line) for line in ask("logs", job).splitlines() if line.strip()]
        return records, json.loads(ask("status", job))["plan"]
    finally:
        coordinator.terminate()
        coordinator.wait()


def run_cell(bin_dir, setting, codec, link, micros, parent, schedule="1f1b", delay="10ms"):
    stages, _, _, _, replicas = SETTINGS[setting]
    directory = tempfile.mkdtemp(prefix=f"{codec}-{link}-".replace(" ", "-"), dir=parent)
    batch = micros * replicas * MICRO
    slow = link.startswith("5M") and codec in ("none", "bf16")
    warm_from = EPOCH_STEPS if "delta" in codec or codec == "auto" else 1
    steps = warm_from + (3 if slow else 8)
    write_text(os.path.join(directory, "text.txt"), batch)
    job = os.path.join(directory, "job.yaml")
    write_job(job, setting, codec, steps, batch, schedule)
    run_dir = os.path.join(directory, "run")
    rate = [] if link == "unshaped" else ["--rate", link]
    r = subprocess.run([f"{bin_dir}/isthmus", "testnet", "--nodes", str(stages * replicas), "--delay", delay, "--mtu", "9000", *rate,
                        "--data-dir", directory, "--run-dir", run_dir, "--json", job],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1200)
    if r.returncode != 0:
        sys.exit(f"testnet failed ({r.returncode}) for {codec} on {link}:\n{r.stderr[-3000:]}")
    summary = json.loads(r.stdout)
    records, plan = records_of(bin_dir, os.path.join(run_dir, "coordinator"), "bench")
    records = [x for x in records if int(x["step"]) > warm_from]
    seconds = statistics.median(x["step_s"] for x in records)
    compute = statistics.median(x["compute_s"] for x in records)
    tokens = batch * CONTEXT
    wire = statistics.median(int(x["wire_bytes"]) for x in records)
    # The busier direction of the busiest pair of daemons. Of a delta the totals hold the cold steps too: it is left out, and when
    # warm the backward direction is the busier one.
    pairs = {}
    for b in summary["boundaries"]:
        if not b["codec"].startswith("delta"):
            way = (b["from"], b["to"])
            pairs[way] = pairs.get(way, 0) + int(b["wire_bytes"]) / steps
    if replicas > 1:  # a pair of daemons for each stage, both ways
        pairs["group"] = (wire - sum(pairs.values())) / (2 * stages)
    fill = 0 if schedule == "overlap" else stages - 1
    by_compute = tokens / (compute * (micros + fill) / micros)
    by_link = float("inf") if link == "unshaped" else tokens / (max(pairs.values()) * 8 / parse_rate(link))
    bound = min(by_compute, by_link)
    return {"codec": codec, "link": link, "schedule": schedule, "tokens_per_s": tokens / seconds, "compute_bound": by_compute,
            "link_bound": None if link == "unshaped" else by_link, "bound": bound, "ratio": tokens / seconds / bound,
            "predicted_tokens_per_s": tokens / plan["predicted_step_s"], "step_s": seconds, "compute_s": compute,
            "wire_bytes_a_step": wire,
            "chosen": [f"{b['link_id']} {b['direction']}: {b['codec']}" for b in summary["boundaries"]]}


def print_cell(c):
    by_link = "-" if c["link_bound"] is None else f"{c['link_bound']:.0f}"
    print(f"{c['codec']:14} {c['schedule']:8} {c['link']:>9} {c['tokens_per_s']:9.0f} {c['predicted_tokens_per_s']:9.0f} {c['compute_bound']:9.0f} {by_link:>9} "
          f"{c['bound']:9.0f} {c['ratio']:6.2f}  {c['step_s']:6.2f}  {c['wire_bytes_a_step']:.0f}", flush=True)


def print_auto(cells):
    """How far auto is from the best other codec on its link, and what it was."""
    for c in cells:
        others = [o for o in cells if o["link"] == c["link"] and o["schedule"] == c["schedule"] and o["codec"] != "auto"]
        if c["codec"] != "auto" or not others:
            continue
        best = max(others, key=lambda o: o["tokens_per_s"])
        print(f"auto at {c['link']}: {c['tokens_per_s'] / best['tokens_per_s']:.3f} of {best['codec']}; {', '.join(c['chosen'])}")


def parse_rate(text):
    for unit, factor in (("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3)):
        if text.endswith(unit):
            return float(text[:-len(unit)]) * factor
    raise ValueError(f"link {text!r}: write unshaped, 20Mbit, 1.5Gbit or 500kbit")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--setting", choices=list(SETTINGS), default="two")
    parser.add_argument("--codecs", help="of " + ", ".join(CODECS) + "; those of the setting's table if left out")
    parser.add_argument("--links", default="unshaped,100Mbit,20Mbit,5Mbit")
    parser.add_argument("--schedules", default="1f1b", help="of 1f1b, overlap, gpipe")
    parser.add_argument("--delay", default="10ms", help="one way")
    parser.add_argument("--micros", type=int, help="micro-batches a step")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each cell; the fastest counts")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--json", help="write the cells there")
    args = parser.parse_args()
    micros = args.micros or SETTINGS[args.setting][3]
    codecs = (args.codecs or DEFAULT_CODECS[args.setting]).split(",")
    best = {}
    print(f"{'codec':14} {'schedule':8} {'link':>9} {'tokens/s':>9} {'predicted':>9} {'compute':>9} {'link':>9} {'bound':>9} {'ratio':>6}  step s  wire bytes a step")
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as directory:
        for round_ in range(args.rounds):
            keys = [(codec, link, schedule) for link, codec, schedule in itertools.product(args.links.split(","), codecs, args.schedules.split(","))]
            with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
                cells = pool.map(lambda key: run_cell(args.bin, args.setting, key[0], key[1], micros, directory, key[2], args.delay), keys)
                for key, c in zip(keys, cells):
                    if key not in best or c["tokens_per_s"] > best[key]["tokens_per_s"]:
                        best[key] = c
                    if round_ + 1 == args.rounds:
                        print_cell(best[key])
    cells = list(best.values())
    print_auto(cells)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(cells, f, indent=1)


if __name__ == "__main__":
    main()
