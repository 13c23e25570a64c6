#!/usr/bin/env python3
"""A link that drops in mid-run and comes back: steps of a job that follows it (recovery.follow), of one that does not, and of an oracle.

    sudo tests/bench/follow_bench.py [--rates 100Mbit,10Mbit,100Mbit] [--seconds 180] [--delay 10ms] [--json FILE]

Two daemons on the WAN emulator, one compute thread each; a GPT of 2 layers x 64, 8 micro-batches of 8 x 256 tokens a step (little to compute: the link is
what counts), all codecs `auto`. The link has each of --rates for --seconds. The oracle knew: for each rate it runs under the plan made for it, and moves
cost it nothing (steps a second of a run of its own, after the first passes over the text). Ratio: the oracle's steps / the job's in the same time. Other
load on the machine hits all of them, at other times.
"""
import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from wan_cluster import WanCluster  # noqa: E402

MICRO, MICROS = 8, 8
WARM_STEPS = 8  # more than two passes over the text


def job(cluster, name, follow):
    return cluster.job(name, model={"layers": 2, "hidden": 64, "heads": 4, "context": 256}, recipe__steps=100000, recipe__global_batch=MICRO * MICROS,
                       recipe__micro_batch=MICRO, compression={}, checkpoint__every=0, recovery__follow=follow)


def cluster_at(rate, delay):
    cluster = WanCluster(3, "1Gbit", delay)  # the way to the coordinator
    cluster.set("n1", "n2", "--rate", rate)
    if cluster.cli("nodes", "--wait", "2", "--timeout", "120")[0] != 0:
        raise SystemExit(cluster.logs())
    return cluster


def steps(cluster, name):
    return int(cluster.status(name).get("step", 0))


def run(rates, seconds, delay, follow):
    """Steps made in each of the rates' times, what was decided, and when."""
    cluster = cluster_at(rates[0], delay)
    try:
        cluster.submit(job(cluster, "run", follow))
        cluster.wait_state({"running"}, "run", step=WARM_STEPS)
        made, words = [], []
        for rate in rates:
            cluster.set("n1", "n2", "--rate", rate)
            begin, before = time.monotonic(), steps(cluster, "run")
            while time.monotonic() < begin + seconds:
                said = cluster.status("run").get("following", "")
                if said and (not words or words[-1][1] != said):
                    words.append((round(time.monotonic() - begin), said))
                time.sleep(0.5)
            made.append(steps(cluster, "run") - before)
        return made, words
    finally:
        cluster.close()


def oracle(rate, seconds, delay):
    """Steps a second of a job that was planned for the rate."""
    cluster = cluster_at(rate, delay)
    try:
        cluster.submit(job(cluster, "oracle", False))
        cluster.wait_state({"running"}, "oracle", step=WARM_STEPS, seconds=600)
        begin, before = time.monotonic(), steps(cluster, "oracle")
        time.sleep(seconds)
        return (steps(cluster, "oracle") - before) / (time.monotonic() - begin)
    finally:
        cluster.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100Mbit,10Mbit,100Mbit")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--delay", default="10ms", help="one way")
    parser.add_argument("--json", help="write the figures there")
    args = parser.parse_args()
    rates = args.rates.split(",")
    of_rate = {rate: oracle(rate, min(args.seconds, 60), args.delay) for rate in dict.fromkeys(rates)}
    best = [args.seconds * of_rate[rate] for rate in rates]
    out = {"rates": rates, "seconds": args.seconds, "oracle": best}
    print(f"{'':10} {' '.join(f'{rate:>9}' for rate in rates)} {'all':>9} {'ratio':>6}")
    print(f"{'oracle':10} {' '.join(f'{n:9.0f}' for n in best)} {sum(best):9.0f}", flush=True)
    for name, follow in (("follows", True), ("stays", False)):
        made, words = run(rates, args.seconds, args.delay, follow)
        out[name] = made
        print(f"{name:10} {' '.join(f'{n:9d}' for n in made)} {sum(made):9d} {sum(best) / max(1, sum(made)):6.2f}", flush=True)
        for seconds, said in words:
            print(f"    {seconds} s after the change: {said}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
