"""A running job as Prometheus sees it: the metrics are those of the list, and the console page shows them."""
import json
import os
import shutil
import subprocess
import sys
import unittest
import urllib.request

from harness import BIN, Cluster, main

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "deploy", "scripts")
sys.path.insert(0, SCRIPTS)
from monitoring_files_test import listed, served  # noqa: E402

SKIPPED = 77
# Of gRPC's and Prometheus' own making, or only there when something was refused.
EXTRA = {"isthmus_metric_series_refused_total"}
# Only there where a job has phases, is paused or failed, or is a classifier's.
SOMETIMES = {"isthmus_job_phase", "isthmus_job_held", "isthmus_job_validation_accuracy", "isthmus_validation_accuracy"}


def get(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


class MonitoringTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start(3)
        cls.cluster.submit(cls.cluster.job(
            strategy__stages=3, recipe__steps=1000000, recipe__eval_every=5, checkpoint__every=10,
            compression__forward="delta(quant(3))", compression__backward="lep(quant(6))"))
        cls.cluster.wait_state({"running"}, step=25)
        cls.sd = f"http://{cls.cluster.http}/sd"

    def targets(self):
        """[(role, node, address)] of the service discovery."""
        return [(group["labels"]["role"], group["labels"]["node"], address)
                for group in json.loads(get(self.sd)) for address in group["targets"]]

    def test_discovery_lists_the_coordinator_and_every_daemon(self):
        found = [(role, node) for role, node, _ in self.targets()]
        self.assertEqual(sorted(n for r, n in found if r == "daemon"), ["d0", "d1", "d2"])
        self.assertEqual([r for r, _ in found].count("coordinator"), 1)
        for _, node, address in self.targets():
            self.assertEqual(urllib.request.urlopen(f"http://{address}/healthz", timeout=10).status, 200, node)

    def test_what_is_served_is_what_is_listed(self):
        names, by_role = listed(), {"daemon": {}, "coordinator": {}}
        for role, _, address in self.targets():
            for name, labels in served(get(f"http://{address}/metrics").splitlines()).items():
                by_role[role].setdefault(name, set()).update(labels)
        for role, found in by_role.items():
            wanted = {n: labels for n, (r, labels) in names.items() if r in (role, "both")}
            ours = {n: labels for n, labels in found.items() if n.startswith("isthmus_") or n in wanted}
            self.assertEqual(sorted(set(ours) - set(wanted) - EXTRA), [], f"{role} serves what metrics.txt lacks")
            self.assertEqual(sorted(set(wanted) - set(ours) - SOMETIMES), [], f"{role} does not serve what metrics.txt lists")
            for name in set(wanted) & set(ours):
                self.assertEqual(ours[name], wanted[name], f"labels of {name}")

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (package prometheus)")
    def test_promtool_finds_no_fault(self):
        for _, node, address in self.targets():
            done = subprocess.run(["promtool", "check", "metrics"], input=get(f"http://{address}/metrics"),
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{node}: {done.stdout}{done.stderr}")

    def test_the_page_shows_the_job(self):
        png = os.path.join(BIN, "..", "dashboard-e2e.png")
        done = subprocess.run([sys.executable, os.path.join(SCRIPTS, "dashboard.py"), "--sd", self.sd, "--png", png],
                              capture_output=True, text=True, timeout=240)
        if done.returncode == SKIPPED:
            self.skipTest(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
