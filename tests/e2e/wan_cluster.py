"""A coordinator and daemons on the WAN emulator."""
import json
import os
import subprocess
import tempfile

from harness import BIN, Cluster, Program


class WanCluster(Cluster):
    """Nodes n0, n1, ... of the WAN emulator: the coordinator on n0, a daemon on each of the others.
    `daemon_args`: more flags of each daemon; without, it computes with one thread. `text`: as Cluster's."""

    def __init__(self, nodes, rate="50Mbit", delay="2ms", loss="0%", control="", mtu=1500, daemon_args=None, text=None):
        super().__init__(text)
        self.run_dir = tempfile.mkdtemp(prefix="isthmus-wan-", dir=self.dir)
        wan = Program("wan", [f"{BIN}/isthmus-wan", "--nodes", str(nodes), "--rate", rate, "--delay", delay, "--loss", loss,
                              "--mtu", str(mtu), "--run-dir", self.run_dir], os.path.join(self.dir, "wan.log"))
        self.programs.append(wan)
        wan.wait_for("ready", 30)
        with open(os.path.join(self.run_dir, "wan.json")) as f:
            self.hosts = {n["name"]: n["address"] for n in json.load(f)["nodes"]}
        self.address = f"{self.hosts['n0']}:7070"
        for node in self.hosts if control else []:  # of sockets that are made from now on
            subprocess.run([f"{BIN}/isthmus-wan", "exec", "--run-dir", self.run_dir, node, "--", "sh", "-c",
                            f"echo {control} > /proc/sys/net/ipv4/tcp_congestion_control"], check=True)
        self.start_on("n0", "coordinator", "isthmus-coordinator", "--insecure", "--listen", "0.0.0.0:7070", "--http", "", "--state-dir",
                      os.path.join(self.dir, "coordinator"))
        for i in range(1, nodes):
            self.start_on(f"n{i}", f"d{i}", "isthmusd", "--insecure", "--coordinator", self.address, "--listen", "0.0.0.0:7071", "--http", "",
                          "--name", f"d{i}", "--state-dir", os.path.join(self.dir, f"d{i}"), "--data-dir", self.data, *(daemon_args[i - 1] if daemon_args else ["--threads", "1"]))

    def start_on(self, node, name, program, *argv):
        p = Program(name, [f"{BIN}/isthmus-wan", "exec", "--run-dir", self.run_dir, node, "--", f"{BIN}/{program}", *argv],
                    os.path.join(self.dir, name + ".log"))
        self.programs.append(p)
        p.wait_for("listening on", 60)
        return p

    def set(self, *argv):
        subprocess.run([f"{BIN}/isthmus-wan", "set", "--run-dir", self.run_dir, *argv], check=True, capture_output=True)

    def cli(self, *args, seconds=120):
        r = subprocess.run([f"{BIN}/isthmus-wan", "exec", "--run-dir", self.run_dir, "n0", "--", f"{BIN}/isthmus", "--insecure", "--coordinator",
                            self.address, *args], capture_output=True, timeout=seconds)
        return r.returncode, r.stdout.decode(errors="replace"), r.stderr.decode(errors="replace")
