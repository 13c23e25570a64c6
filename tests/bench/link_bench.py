#!/usr/bin/env python3
"""What a link between two daemons carries of the line's rate: goodput / rate for rate x round trip x loss x TCP connections.

    sudo tests/bench/link_bench.py [--bin build/bin] [--rates 100,300] [--round-trips 25,150] [--losses 0,0.1,0.5] [--connections 1,2,4,8]
                                   [--control bbr,reno] [--direction up|down|both] [--seconds 5] [--mtu 1500] [--window BYTES] [--ping] [--ping-bytes 64] [--uplink]

Two processes with the daemon's own links on the WAN emulator; payload by the receiver's clock, after the first `--skip` seconds (slow start). The window is the
planner's (two round trips at the line's rate, 256 KiB to 64 MiB). The congestion control is set in the two namespaces. `up` is towards the serving end, `down`
towards the dialling one; `both` gives the worse of the two, with both sides sending. --ping adds the median and the longest round trip of frames of --ping-bytes on
a link of their own beside the bulk. --uplink tells both ends the line's rate, as isthmusd --uplink does: those frames then go first. "limit" in the first row is what the emulator and the links carry here without a rate: above it no ratio means anything.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


class Wan:
    def __init__(self, bin_dir, run_dir, mtu):
        self.bin, self.run_dir = bin_dir, run_dir
        self.process = subprocess.Popen([f"{bin_dir}/isthmus-wan", "--nodes", "2", "--mtu", str(mtu), "--run-dir", run_dir], stdout=subprocess.PIPE)
        assert self.process.stdout.readline().startswith(b"ready"), "no emulator"
        with open(f"{run_dir}/wan.json") as f:
            self.address = json.load(f)["nodes"][1]["address"]

    def set(self, rate_mbit, round_trip_ms, loss):
        for a, b in (("n0", "n1"), ("n1", "n0")):
            subprocess.run([f"{self.bin}/isthmus-wan", "set", "--run-dir", self.run_dir, a, b, "--rate", f"{rate_mbit}Mbit" if rate_mbit else "unlimited",
                            "--delay", f"{round_trip_ms / 2}ms", "--loss", f"{loss}%"], check=True, stdout=subprocess.DEVNULL)

    def on(self, node, *argv):
        return subprocess.Popen([f"{self.bin}/isthmus-wan", "exec", "--run-dir", self.run_dir, node, "--", *argv], stdout=subprocess.PIPE)

    def control(self, name):
        for node in ("n0", "n1"):
            if self.on(node, "sh", "-c", f"echo {name} 2>&1 > /proc/sys/net/ipv4/tcp_congestion_control").wait() != 0:
                sys.exit(f"the kernel lets no namespace have the congestion control '{name}': net.ipv4.tcp_allowed_congestion_control lists those that it does")

    def close(self):
        self.process.terminate()
        self.process.wait()


def cell(wan, port, args, connections, window, rate=0):
    common = ["--address", f"{wan.address}:{port}", "--connections", str(connections), "--window", str(window), "--seconds", str(args.seconds), "--skip", str(args.skip), "--ping-bytes", str(args.ping_bytes)]
    if args.uplink and rate:
        common += ["--uplink", str(int(rate * 1e6))]
    server = wan.on("n1", f"{args.bin}/link_bench", "serve", *common, "--send", "no" if args.direction == "up" else "yes")
    client = wan.on("n0", f"{args.bin}/link_bench", "dial", *common, "--send", "no" if args.direction == "down" else "yes", "--ping", "yes" if args.ping else "no")
    told = {name: json.loads(p.communicate(timeout=180)[0] or b"{}") for name, p in (("up", server), ("down", client))}
    rates = [told[d].get("bits_per_s", 0) for d in (("up", "down") if args.direction == "both" else (args.direction,))]
    return min(rates), told["down"].get("ping_ms", [0, 0])


def main():
    numbers = lambda kind: lambda text: [kind(x) for x in text.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=os.path.join(HERE, "../../build/bin"))
    p.add_argument("--rates", type=numbers(int), default=[100, 300])
    p.add_argument("--round-trips", type=numbers(int), default=[25, 150])
    p.add_argument("--losses", type=numbers(float), default=[0, 0.1, 0.5])
    p.add_argument("--connections", type=numbers(int), default=[1, 2, 4, 8])
    p.add_argument("--control", type=lambda text: text.split(","), default=["bbr", "reno"])
    p.add_argument("--direction", choices=["up", "down", "both"], default="up")
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--skip", type=float, default=1.5)
    p.add_argument("--mtu", type=int, default=1500)
    p.add_argument("--window", type=int, default=0)
    p.add_argument("--ping", action="store_true")
    p.add_argument("--ping-bytes", type=int, default=64)
    p.add_argument("--uplink", action="store_true")
    args = p.parse_args()
    port = 7100
    with tempfile.TemporaryDirectory(prefix="isthmus-wan-") as run_dir:
        wan = Wan(args.bin, run_dir, args.mtu)
        try:
            wan.set(0, 0, 0)
            limit, _ = cell(wan, port, args, 1, 64 << 20)
            print(f"limit {limit / 1e6:.0f} Mbit/s, MTU {args.mtu}, direction {args.direction}\n")
            print("| control | rate | round trip | loss | " + " | ".join(f"{n}" for n in args.connections) + " |")
            print("|---" * (4 + len(args.connections)) + "|", flush=True)
            for control in args.control:
                wan.control(control)
                for rate in args.rates:
                    for round_trip in args.round_trips:
                        for loss in args.losses:
                            wan.set(rate, round_trip, loss)
                            window = args.window or min(max(256 << 10, int(rate * 1e6 / 8 * round_trip / 1e3 * 2)), 64 << 20)
                            row = []
                            for n in args.connections:
                                port += 1
                                got, ping = cell(wan, port, args, n, window, rate)
                                row.append(f"{got / (rate * 1e6):.2f}" + (f" ({ping[0]:.0f}, {ping[1]:.0f} ms)" if args.ping else ""))
                            print(f"| {control} | {rate} Mbit/s | {round_trip} ms | {loss:g} % | " + " | ".join(row) + " |", flush=True)
        finally:
            wan.close()


if __name__ == "__main__":
    main()
