#!/usr/bin/env python3
"""What smaller micro-batches at the beginning and the end of a step would save, beside smaller ones throughout. Simulated; runs anywhere.

    tests/bench/micro_batches.py [--stages 8] [--one-way 50] [--overhead 0,1,5,20]

1F1B on equal stages and links, with the warm-up forwards that are best of a few. A pass of n samples takes an overhead and n times a sample's seconds, backward twice as much; a frame
the same with the link's seconds. `ramp` is 2, 4, 8, ... samples up to the full micro-batch, and down again at the end. The two settings: eight stages of a GPT of 204M parameters, 512 samples of 1024
tokens a step, links of 200 Mbit/s, with 84 bytes a token (a subspace in 4 bits) and with 480 (4 bits, predicted).
"""
import argparse
import math

SAMPLES = 512
SETTINGS = {"84 bytes a token": 1.76, "480 bytes a token": 9.9}  # seconds of a direction of a link in a step
COMPUTE_S = 0.2  # of a stage in a step


def orders(stages, micros, warmups):
    for stage in range(stages):
        begun = min(warmups[stage], micros)
        order = [("F", i) for i in range(begun)]
        for i in range(micros):
            if begun < micros:
                order.append(("F", begun))
                begun += 1
            order.append(("B", i))
        yield order


def simulate(sizes, warmups, overhead, sample_s, link_s, one_way):
    stages = len(warmups)
    lists = list(orders(stages, len(sizes), warmups))
    clock, up_free, down_free, at = [0.0] * stages, [0.0] * stages, [0.0] * stages, [0] * stages
    activation, gradient = [{} for _ in range(stages)], [{} for _ in range(stages)]
    moved = True
    while moved:
        moved = False
        for s in range(stages):
            while at[s] < len(lists[s]):
                kind, i = lists[s][at[s]]
                forward = kind == "F"
                arrived = 0 if s == (0 if forward else stages - 1) else (activation if forward else gradient)[s].get(i)
                if arrived is None:
                    break
                clock[s] = max(clock[s], arrived) + overhead + (1 if forward else 2) * sample_s * sizes[i]
                free, to, frames = (up_free, s + 1, activation) if forward else (down_free, s - 1, gradient)
                if 0 <= to < stages:
                    free[s] = max(free[s], clock[s]) + link_s * sizes[i]
                    frames[to][i] = free[s] + one_way
                at[s] += 1
                moved = True
    return max(clock)


def step_seconds(stages, sizes, overhead, sample_s, link_s, one_way):
    n, best = max(sizes), math.inf
    compute, transfer = 2 * overhead + 3 * sample_s * n, link_s * n
    for slack in (1, 1.5, 2, 3):
        apart = max(1, math.ceil((2 * compute + 1.25 * slack * 2 * (transfer + one_way)) / max(compute, transfer)) - 1)
        warmups = [min(len(sizes), apart * (stages - 1 - s)) for s in range(stages)]
        best = min(best, simulate(sizes, warmups, overhead, sample_s, link_s, one_way))
    return best


def ramp(micro_batch):
    up = []
    while 2 << len(up) < micro_batch:
        up.append(2 << len(up))
    middle = SAMPLES - 2 * sum(up)
    return up + [micro_batch] * (middle // micro_batch) + ([middle % micro_batch] if middle % micro_batch else []) + up[::-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--one-way", type=float, default=50, help="milliseconds")
    parser.add_argument("--overhead", default="0,1,5,20", help="milliseconds of a pass, whatever its size")
    args = parser.parse_args()
    print("| link | overhead of a pass | micro-batch | s a step | with a ramp | gain | against the best without |")
    print("|---|---|---|---|---|---|---|")
    for name, link_s in SETTINGS.items():
        for overhead in (float(x) / 1e3 for x in args.overhead.split(",")):
            costs = (overhead, COMPUTE_S / 3 / SAMPLES, link_s / SAMPLES, args.one_way / 1e3)
            same = {n: step_seconds(args.stages, [n] * (SAMPLES // n), *costs) for n in (2, 4, 8, 16, 32, 64)}
            for n, seconds in same.items():
                with_ramp = step_seconds(args.stages, ramp(n), *costs)
                print(f"| {name} | {overhead * 1e3:g} ms | {n} | {seconds:.2f} | {with_ramp:.2f} | {100 * (1 - with_ramp / seconds):.1f} % | "
                      f"{100 * (1 - with_ramp / min(same.values())):.1f} % |", flush=True)


if __name__ == "__main__":
    main()
