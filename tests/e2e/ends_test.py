"""How a job ends: on a slow path to the coordinator, with a daemon that is told to end, in the middle of a validation pass."""
import json
import os
import shutil
import subprocess
import unittest

from harness import BIN, Cluster, Program, main, small_text

HERE = "taken from this host's own disk"


class WanCluster(Cluster):
    """The same programs on the nodes of an emulated network: coordinator and CLI on `hub`, daemon nI on node nI."""

    def __init__(self, table):
        super().__init__()
        self.wan_dir = os.path.join(self.dir, "wan")
        links = os.path.join(self.dir, "links.csv")
        with open(links, "w") as f:
            f.write(table)
        wan = Program("wan", [f"{BIN}/isthmus-wan", "--links", links, "--run-dir", self.wan_dir], os.path.join(self.dir, "wan.log"))
        self.programs.append(wan)
        wan.wait_for("ready", 30)
        with open(os.path.join(self.wan_dir, "wan.json")) as f:
            self.at = {n["name"]: n["address"].split("/")[0] for n in json.load(f)["nodes"]}
        self.wan = wan

    def on(self, node, *argv):
        return [f"{BIN}/isthmus-wan", "exec", "--run-dir", self.wan_dir, node, "--", *argv]

    def start(self, daemons):
        self.address = f"{self.at['hub']}:7070"
        coordinator = Program("coordinator", self.on("hub", f"{BIN}/isthmus-coordinator", "--insecure", "--listen", f"{self.at['hub']}:7070", "--http", "",
                                                     "--state-dir", os.path.join(self.dir, "coordinator")),
                              os.path.join(self.dir, "coordinator.log"))
        self.programs.append(coordinator)
        coordinator.wait_for("listening on", 30)
        for i in range(daemons):
            name = f"n{i}"
            p = Program(name, self.on(name, f"{BIN}/isthmusd", "--insecure", "--coordinator", self.address, "--listen", f"{self.at[name]}:7071", "--http", "",
                                      "--name", name, "--state-dir", os.path.join(self.dir, name), "--data-dir", self.data, "--threads", "1"),
                        os.path.join(self.dir, name + ".log"))
            self.programs.append(p)
            self.daemons[name] = p
        self.wait_nodes(daemons)
        return self

    def cli(self, *args, seconds=120):
        r = subprocess.run(self.on("hub", f"{BIN}/isthmus", "--insecure", "--coordinator", self.address, *args), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=seconds)
        return r.returncode, r.stdout.decode(errors="replace"), r.stderr.decode(errors="replace")


class EndsTest(unittest.TestCase):
    def cluster(self, daemons, **options):
        cluster = Cluster(**options)
        self.addCleanup(cluster.close)
        return cluster.start(daemons)

    def test_a_last_checkpoint_that_takes_minutes_is_stored_and_a_resume_fetches_nothing(self):
        if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
            self.skipTest("the emulator needs root and /dev/net/tun")
        cluster = WanCluster("from,to,rate,delay,jitter,loss\nhub,n0,400kbit,5ms,,\nhub,n1,400kbit,5ms,,\nn0,n1,1Gbit,1ms,,\n")
        self.addCleanup(cluster.close)
        cluster.start(2)
        cluster.submit(cluster.job(recipe__steps=10, model__hidden=112, checkpoint__every=1000))  # waits until the links are measured, and so are the paths then
        for node in json.loads(cluster.cli("nodes", "--json")[1])["nodes"]:
            self.assertGreater(node["path"]["up_bits_per_s"], 2e5, node)
            self.assertLess(node["path"]["up_bits_per_s"], 5e5, node)
        status = cluster.wait_state({"finished", "failed", "paused", "stopped"}, seconds=400)
        self.assertEqual((status["state"], int(status["checkpoint_step"])), ("finished", 10), status)
        small = cluster.job("small", recipe__steps=10000, model__hidden=32, checkpoint__every=100000)
        cluster.submit(small)
        cluster.wait_state({"running"}, "small", step=5)
        self.assertEqual(cluster.cli("stop", "small")[0], 0)
        at = int(cluster.wait_state({"stopped"}, "small")["checkpoint_step"])
        cluster.submit(small, "--resume")
        cluster.wait_state({"running"}, "small", step=at + 5)
        for name in ("n0", "n1"):
            for what in ("weights", "optimizer", "state"):
                self.assertIn(f"{what} of checkpoint {at} {HERE}", cluster.daemons[name].text(), cluster.logs())
        self.assertEqual(cluster.cli("stop", "--now", "small")[0], 6, "steps are lost")

    def test_a_daemon_that_is_told_to_end_takes_its_job_to_a_checkpoint(self):
        cluster = self.cluster(2)
        # Held in place: a restarted daemon measures itself anew, and other layers would not lie on its disk.
        job = cluster.job(recipe__steps=20000, checkpoint__every=10000, strategy__nodes=["d0", "d1"], strategy__layers_per_stage=[2, 2])
        cluster.submit(job)
        cluster.wait_state({"running"}, step=30)
        self.assertEqual(cluster.daemons["d1"].terminate(), 0)
        status = cluster.wait_state({"paused", "failed", "stopped"}, seconds=60)
        self.assertEqual(status["state"], "paused", status)
        self.assertIn("daemon d1 left (SIGTERM)", status["reason"])
        at = int(status["checkpoint_step"])
        self.assertEqual((at, at >= 30), (int(status["step"]), True), status)
        cluster.start_daemon("d1")
        cluster.wait_nodes(2)
        cluster.submit(job, "--resume")
        cluster.wait_state({"running"}, step=at + 5)
        self.assertEqual(sorted(cluster.losses())[:at + 5], list(range(at + 5)), "a step is missing from the log")
        for name in ("d0", "d1"):
            self.assertIn(f"weights of checkpoint {at} {HERE}", cluster.daemons[name].text(), cluster.logs())
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        cluster.wait_state({"stopped"})

    def test_a_damaged_part_on_a_daemons_disk_is_fetched(self):
        cluster = self.cluster(2)
        job = cluster.job(recipe__steps=20000, checkpoint__every=10000)
        cluster.submit(job)
        cluster.wait_state({"running"}, step=10)
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        at = int(cluster.wait_state({"stopped"})["step"])
        for root, _, files in os.walk(os.path.join(cluster.dir, "d0", "checkpoints")):
            for name in files:
                with open(os.path.join(root, name), "r+b") as f:
                    f.seek(-3, os.SEEK_END)
                    f.write(b"???")
        shutil.rmtree(os.path.join(cluster.dir, "d1", "checkpoints"))
        cluster.submit(job, "--resume")
        cluster.wait_state({"running"}, step=at + 5)
        self.assertIn("is of no use, it is fetched", cluster.daemons["d0"].text())
        self.assertNotIn(HERE, cluster.daemons["d0"].text() + cluster.daemons["d1"].text())

    def test_a_stop_leaves_a_long_validation_pass(self):
        cluster = self.cluster(2, text=small_text(4400000))
        cluster.submit(cluster.job(data__validation_share=0.45, recipe__steps=20000, recipe__eval_samples=60000, recipe__eval_every=20,
                                   checkpoint__every=10000))
        cluster.wait_state({"running"}, step=19)
        code, _, err = cluster.cli("stop", "job")
        self.assertEqual(code, 0, err)
        status = cluster.wait_state({"stopped", "failed", "paused"}, seconds=120)
        self.assertEqual(status["state"], "stopped", status)
        self.assertNotIn("not in good order", status["reason"])
        self.assertEqual(status["checkpoint_step"], status["step"], status)
        records = [json.loads(line) for line in cluster.cli("logs", "job", "--json")[1].splitlines()]
        self.assertEqual([r for r in records if r.get("has_validation_loss")], [], "the pass went on to its end")


if __name__ == "__main__":
    main()
