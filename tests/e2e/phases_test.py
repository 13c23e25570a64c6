"""A V-cycle as the phases of one job, over daemons: against the same by hand, and through stops, kills and restarts."""
import json
import os
import shutil
import struct
import subprocess
import time
import unittest

from harness import BIN, Cluster

PHASES = [{"steps": 40, "warmup_steps": 5}, {"steps": 80, "layers": 2, "heads": 2}, {"steps": 40, "alpha": 0.5}]
STEPS = sum(p["steps"] for p in PHASES)


def tensors(path):
    """{name: (shape, bytes)} of a safetensors file."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {name: (t["shape"], data[slice(*t["data_offsets"])]) for name, t in head.items() if name != "__metadata__"}


class PhasesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        # The coordinator starts programs of its own folder: there the one that makes weights of a next phase waits while a file is there.
        cls.hold = os.path.join(cls.cluster.dir, "hold")
        cls.cluster.coordinator_bin = os.path.join(cls.cluster.dir, "bin")
        os.mkdir(cls.cluster.coordinator_bin)
        shutil.copy(f"{BIN}/isthmus-coordinator", cls.cluster.coordinator_bin)
        program = os.path.join(cls.cluster.coordinator_bin, "isthmus-multilevel")
        with open(program, "w") as f:
            f.write(f'#!/bin/sh\nwhile [ -e "{cls.hold}" ]; do kill -0 $PPID || exit 1; sleep 0.05; done\nexec "{BIN}/isthmus-multilevel" "$@"\n')
        os.chmod(program, 0o755)
        cls.cluster.start(2)

    def at(self, *names):
        return os.path.join(self.cluster.dir, *names)

    def job(self, name, **changes):
        return self.cluster.job(name, **{"recipe__steps": STEPS, "phases": PHASES, "checkpoint__every": 10, "checkpoint__keep": 2, **changes})

    def multilevel(self, *words):
        done = subprocess.run([f"{BIN}/isthmus", "multilevel", *words], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)

    def export(self, job, folder, *flags):
        code, _, err = self.cluster.cli("export", job, self.at(folder), *flags)
        self.assertEqual(code, 0, err)
        with open(self.at(folder, "config.json")) as f:
            config = json.load(f)
        return config, tensors(self.at(folder, "model.safetensors"))

    def checkpoints(self, job):
        code, out, err = self.cluster.cli("checkpoints", job, "--json")
        self.assertEqual(code, 0, err)
        return {int(c["step"]): c for c in json.loads(out)["checkpoints"]}

    def start_of(self, job, step):
        """What the phase after `step` started with."""
        return tensors(self.at("coordinator", "checkpoints", self.cluster.status(job)["job_id"], f"step-{step:08}", "start", "weights.safetensors"))

    def operator(self, seconds=120):
        """The process id of the program that makes the weights of the next phase: held, it waits before it begins."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/stat") as f:
                        name, rest = f.read().split("(", 1)[1].rsplit(")", 1)
                    if name.startswith("isthmus-multi") and int(rest.split()[1]) == self.cluster.coordinator.process.pid:
                        return int(pid)
                except (FileNotFoundError, ProcessLookupError):
                    pass  # it ended meanwhile
            time.sleep(0.05)
        self.fail("no weights of a next phase were made")

    def test_1_cycle(self):
        cluster = self.cluster
        code, out, err = cluster.cli("plan", self.job("cycle"))
        self.assertEqual(code, 0, err)
        for words in (f"phases: all {STEPS} steps take ", "phase 1 of 3: steps 1 to 40, 4 layers x 32, ",
                      "phase 2 of 3: steps 41 to 120, 2 layers x 16, ", "phase 3 of 3: steps 121 to 160, "):
            self.assertIn(words, out)
        watched = cluster.submit(self.job("cycle"), "--watch")
        self.assertIn("phase 3/3", watched)
        status = cluster.status("cycle")
        self.assertEqual((status["state"], int(status["phase"]), int(status["phases"])), ("finished", 2, 3), status)

        code, out, err = cluster.cli("logs", "cycle", "--json")
        records = [json.loads(line) for line in out.splitlines() if line.strip()]
        self.assertEqual([int(r["phase"]) for r in records], [0] * 40 + [1] * 80 + [2] * 40)
        rates = [r["learning_rate"] for r in records]
        self.assertAlmostEqual(rates[0], 3e-3 / 5)
        self.assertAlmostEqual(rates[39], 3e-4, places=5)
        self.assertAlmostEqual(rates[46], 3e-3, places=4)
        losses = cluster.losses("cycle")
        self.assertLess(losses[40], losses[0] - 0.5, "the small model begins with what the large one learned")
        self.assertLess(losses[STEPS - 1], losses[39])

        # The newest is the large model. What the phases started with is what the operators make of the ends of phases by hand.
        config, _ = self.export("cycle", "end")
        self.assertEqual((config["n_layer"], config["n_embd"], config["n_head"]), (4, 32, 4))
        self.assertEqual(list(self.checkpoints("cycle")), [160, 150])

    def test_2_stops_kills_and_restarts_change_nothing(self):
        cluster = self.cluster
        path = self.job("broken")
        cluster.submit(path)
        cluster.wait_state({"running"}, "broken", step=15)
        cluster.cli("stop", "broken")  # inside the first phase
        status = cluster.wait_state({"stopped"}, "broken")
        self.assertLess(int(status["step"]), 40)
        open(self.hold, "w").close()
        cluster.submit(path, "--resume")
        self.operator()
        self.assertEqual(cluster.status("broken")["state"], "pending")  # between two phases
        cluster.coordinator.kill()
        os.remove(self.hold)
        cluster.start_coordinator(cluster.address)
        status = cluster.wait_state({"running"}, "broken", step=60)
        self.assertEqual(int(status["phase"]), 1)
        holder = status["plan"]["ranks"][0]["node_name"]
        cluster.daemons[holder].kill()
        status = cluster.wait_state({"paused"}, "broken")
        self.assertLess(int(status["step"]), 120)
        self.export("broken", "large", "--step", "40")
        cluster.start_daemon(holder)
        cluster.wait_nodes(2)
        open(self.hold, "w").close()
        cluster.submit(path, "--resume")
        operator = self.operator()
        self.assertEqual(cluster.cli("stop", "broken")[0], 0)
        cluster.wait_for(lambda: not os.path.exists(f"/proc/{operator}"))  # of no use any more
        os.remove(self.hold)
        status = cluster.status("broken")
        self.assertEqual((status["state"], int(status["step"])), ("stopped", 120), status)
        self.assertIn("between two phases", status["reason"])
        kept = self.checkpoints("broken")
        self.assertTrue(kept[40]["phase_end"] and kept[120]["phase_end"], kept)  # beside the two that are kept
        config, small = self.export("broken", "small")
        self.assertEqual((config["n_layer"], config["n_embd"], config["n_head"]), (2, 16, 2))
        self.multilevel("coalesce", self.at("large"), self.at("first"))
        self.assertEqual(self.start_of("broken", 40), tensors(self.at("first", "model.safetensors")))

        # Enough of them are kept from here on that what the last phase starts with is there at the end.
        cluster.submit(self.job("broken", checkpoint__keep=20), "--resume")
        cluster.wait_state({"finished"}, "broken")
        self.multilevel("decoalesce", self.at("small"), self.at("grown"), "--like", self.at("large"))
        self.multilevel("interpolate", self.at("large"), self.at("grown"), self.at("second"), "--alpha", "0.5")
        self.assertEqual(self.start_of("broken", 120), tensors(self.at("second", "model.safetensors")))
        whole, broken = cluster.losses("cycle"), cluster.losses("broken")
        self.assertEqual(len(broken), STEPS)
        for step in range(STEPS):
            self.assertAlmostEqual(whole[step], broken[step], delta=1e-5, msg=f"step {step}")

    def test_3_refusals(self):
        path = self.cluster.job("wrong", recipe__steps=30, phases=[{"steps": 10}, {"steps": 20, "layers": 3}])
        code, _, err = self.cluster.cli("submit", path)
        self.assertEqual(code, 2)
        self.assertRegex(err, r"wrong.yaml:\d+:\d+: phases\[1\].layers: '3' is not allowed; it must be a divisor of 4")
        edited = [dict(PHASES[0], steps=30), *PHASES[1:]]
        path = self.cluster.job("cycle", recipe__steps=STEPS - 10, phases=edited)
        code, _, err = self.cluster.cli("submit", path, "--resume", "--accept-changes")
        self.assertNotEqual(code, 0)
        self.assertIn("phases[0].steps is 30 and was 40", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
