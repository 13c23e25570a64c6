#!/usr/bin/env python3
"""Peak memory of the programs that save and load a checkpoint, beside what the stage itself takes.

    tests/bench/checkpoint_memory_bench.py [--bin build/bin] [--layers 12] [--hidden 768]

One daemon trains a model for two steps on loopback, three times: without a checkpoint before the end, with one after each step, and on from
the stored one on a fresh daemon whose own copy was deleted, so that it fetches all. State is what a stage holds of each parameter:
value, gradient, two moments, 16 bytes. Figures are the highest resident memory (VmHWM) of each process, in MB.
"""
import argparse
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))


def peak_mb(program):
    with open(f"/proc/{program.process.pid}/status") as f:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in f if line.startswith("VmHWM:"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "bin"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    args = parser.parse_args()
    os.environ["ISTHMUS_BIN"] = args.bin
    import harness

    parameters = args.layers * (12 * args.hidden**2 + 13 * args.hidden) + (256 + 16 + 2) * args.hidden
    print(f"{parameters / 1e6:.1f} M parameters: weights {4 * parameters / 1e6:.0f} MB, state {16 * parameters / 1e6:.0f} MB")
    cluster = harness.Cluster()
    try:
        cluster.start_coordinator()
        options = dict(model__layers=args.layers, model__hidden=args.hidden, model__heads=12, model__context=16, recipe__global_batch=1,
                       recipe__micro_batch=1, recipe__eval_samples=0, strategy__stages=1)

        def run(what, name, *flags, **changes):
            cluster.start_daemon("d0")
            cluster.wait_nodes(1)
            cluster.submit(cluster.job(name, **{**options, **changes}), *flags)
            at = cluster.wait_state({"running", "finished"}, name, 600, step=1)
            early = peak_mb(cluster.daemons["d0"])
            cluster.wait_state({"finished"}, name, 600)
            print(f"{what:44} daemon {early:7.0f} after a step, {peak_mb(cluster.daemons['d0']):7.0f} in all; "
                  f"coordinator {peak_mb(cluster.coordinator):5.0f}", flush=True)
            cluster.daemons["d0"].terminate()
            return at

        run("trains, and saves once at the end", "once", recipe__steps=3, checkpoint__every=0)
        run("trains, and saves after each step", "each", recipe__steps=3, checkpoint__every=1)
        shutil.rmtree(os.path.join(cluster.dir, "d0", "checkpoints"))
        run("fetches all of it and goes on", "each", "--resume", recipe__steps=4, checkpoint__every=0)
        run("takes its own copy and goes on", "each", "--resume", recipe__steps=5, checkpoint__every=0)
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
