"""Starts the real programs for end-to-end tests: coordinator, daemons and CLI as processes on loopback.

Every wait has a deadline, every process is ended by its own handle, and a failing test prints the tails of all logs.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = os.path.abspath(os.environ.get("ISTHMUS_BIN", os.path.join(os.path.dirname(__file__), "..", "..", "build", "bin")))


class Program:
    """One process with its output in a file."""

    def __init__(self, name, argv, log):
        self.name, self.log = name, log
        self.start = os.path.getsize(log) if os.path.exists(log) else 0
        self.out = open(log, "ab")
        self.process = subprocess.Popen(argv, stdout=self.out, stderr=subprocess.STDOUT,
                                        env=dict(os.environ, OMP_NUM_THREADS="1"))

    def text(self):
        with open(self.log, errors="replace") as f:
            f.seek(self.start)
            return f.read()

    def wait_for(self, text, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self.text().splitlines():
                if text in line:
                    return line
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.text()[-3000:]}")
            time.sleep(0.05)
        raise AssertionError(f"{self.name} did not print {text!r} in {seconds} s:\n{self.text()[-3000:]}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def terminate(self, seconds=10):
        """SIGTERM; returns the exit code. Fails if it takes longer than `seconds`."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {seconds} s of SIGTERM:\n{self.text()[-3000:]}")

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.out.close()


class Cluster:
    """A coordinator and daemons on loopback, in a directory of their own."""

    def __init__(self, text=None):
        self.dir = tempfile.mkdtemp(prefix="isthmus-e2e-")
        self.data = os.path.join(self.dir, "data")
        os.mkdir(self.data)
        with open(os.path.join(self.data, "text.txt"), "wb") as f:
            f.write(text if text is not None else small_text())
        self.programs, self.daemons, self.coordinator_bin = [], {}, BIN
        self.coordinator, self.address, self.http = None, None, None

    def start_coordinator(self, address="127.0.0.1:0", *flags):
        p = Program("coordinator", [f"{self.coordinator_bin}/isthmus-coordinator", "--listen", address, "--http", "127.0.0.1:0",
                                    "--state-dir", os.path.join(self.dir, "coordinator"), *flags],
                    os.path.join(self.dir, "coordinator.log"))
        self.programs.append(p)
        words = p.wait_for("listening on", 30).split()
        self.address, self.http = words[words.index("on") + 1], words[words.index("http") + 1]
        self.coordinator = p
        return p

    def start_daemon(self, name, *flags, coordinator=None, listen="127.0.0.1:0"):
        p = Program(name, [f"{BIN}/isthmusd", "--coordinator", coordinator or self.address, "--listen", listen,
                           "--http", "127.0.0.1:0", "--name", name, "--state-dir", os.path.join(self.dir, name),
                           "--data-dir", self.data, "--threads", "1", *flags], os.path.join(self.dir, name + ".log"))
        self.programs.append(p)
        self.daemons[name] = p
        return p

    def start(self, daemons):
        self.start_coordinator()
        for i in range(daemons):
            self.start_daemon(f"d{i}")
        self.wait_nodes(daemons)
        return self

    def wait_nodes(self, count, seconds=90):
        end = time.monotonic() + seconds
        alive = []
        while time.monotonic() < end:
            code, out, _ = self.cli("nodes", "--json")
            if code == 0:
                alive = [n for n in json.loads(out).get("nodes", []) if n.get("alive")]
                if len(alive) == count:
                    return alive
            time.sleep(0.2)
        raise AssertionError(f"{len(alive)} of {count} daemons alive after {seconds} s\n{self.logs()}")

    def cli(self, *args, seconds=120):
        r = subprocess.run([f"{BIN}/isthmus", "--coordinator", self.address, *args], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=seconds)
        return r.returncode, r.stdout.decode(errors="replace"), r.stderr.decode(errors="replace")

    def job(self, name="job", **changes):
        """Writes a job file; changes are paths with '__' for '.'."""
        job = {
            "name": name, "seed": 3,
            "model": {"layers": 4, "hidden": 32, "heads": 4, "context": 32},
            "data": {"path": "text.txt"},
            "recipe": {"steps": 20, "global_batch": 8, "micro_batch": 2, "learning_rate": 3e-3, "eval_samples": 8},
            "strategy": {"stages": 2},
            "compression": {"forward": "none", "backward": "none", "tied": "none"},  # exact, so that cuts compare
            "checkpoint": {"every": 5, "local": 0},  # what is lost is what was not stored
            "recovery": {"automatic": False, "follow": False},  # each test says what it wants
        }
        for path, value in changes.items():
            at = job
            *parents, last = path.split("__")
            for p in parents:
                at = at.setdefault(p, {})
            at[last] = value
        path = os.path.join(self.dir, name + ".yaml")
        with open(path, "w") as f:
            write_yaml(job, f)
        return path

    def submit(self, path, *flags):
        code, out, err = self.cli("submit", path, *flags)
        if code != 0:
            raise AssertionError(f"submit: exit {code}\n{out}\n{err}\n{self.logs()}")
        return out

    def status(self, job="job"):
        code, out, err = self.cli("status", job, "--json")
        if code != 0:
            raise AssertionError(f"status: exit {code}\n{out}\n{err}")
        return json.loads(out)

    def wait_state(self, states, job="job", seconds=120, step=None, stored=False):
        """Its status, once it is in one of `states`, `step` steps are made and, if asked for, a checkpoint is stored: without one a job
        that loses a daemon fails in place of pausing."""
        end = time.monotonic() + seconds
        status = {}
        while time.monotonic() < end:
            status = self.status(job)
            if status.get("state") in states and (step is None or int(status.get("step", 0)) >= step) \
                    and (not stored or int(status["checkpoint_step"]) > 0):
                return status
            time.sleep(0.1)
        raise AssertionError(f"job {job} is {status} after {seconds} s, not {states}\n{self.logs()}")

    def wait_for(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s\n{self.logs()}")
            time.sleep(0.1)

    def losses(self, job="job"):
        """{steps before it: loss}: the first step is 0 here, as lists count."""
        code, out, err = self.cli("logs", job, "--json")
        if code != 0:
            raise AssertionError(f"logs: exit {code}\n{err}")
        records = [json.loads(line) for line in out.splitlines() if line.strip()]
        return {int(r["step"]) - 1: r["loss"] for r in records if "loss" in r}

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.text()[-2500:]}" for p in self.programs)

    def close(self):
        for p in reversed(self.programs):
            p.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def write_yaml(value, f, indent=0):
    for key, v in value.items():
        if isinstance(v, dict):
            f.write(" " * indent + f"{key}:\n")
            write_yaml(v, f, indent + 2)
        else:
            f.write(" " * indent + f"{key}: {json.dumps(v)}\n")


def small_text(size=60000):
    """A text with structure, the same every time: sentences of a small grammar drawn by a linear congruential generator."""
    nouns = "river bridge lantern harbour orchard miller window letter garden winter".split()
    verbs = "finds carries leaves follows remembers paints answers crosses".split()
    state, out, length = 12345, [], 0

    def pick(words):
        nonlocal state
        state = (state * 1103515245 + 12345) % (1 << 31)
        return words[(state >> 16) % len(words)]

    while length < size:
        out.append(f"The {pick(nouns)} {pick(verbs)} the {pick(nouns)} and the {pick(nouns)} {pick(verbs)} a {pick(nouns)}.\n")
        length += len(out[-1])
    return "".join(out)[:size].encode()


def main():
    for program in ("isthmus", "isthmusd", "isthmus-coordinator"):
        if not os.path.exists(os.path.join(BIN, program)):
            sys.exit(f"{BIN}/{program} is missing: build it, or set ISTHMUS_BIN")
    unittest.main(verbosity=2)
