"""Which alerts fire in each state of a job and of a daemon: the rules run on what the real programs serve in it.

Every state is scraped twice, as Prometheus would (the coordinator, and the daemons that its service discovery lists), then
stretched to a hundred minutes: gauges stay, counters go on at the rate between the two scrapes, a series or a target that is
gone ends with a staleness marker. promtool evaluates deploy/prometheus/alerts.yml on the whole and is asked what fires at
the end of each state.
"""
import json
import os
import re
import shutil
import subprocess
import time
import unittest
import urllib.request

from harness import Cluster, main

RULES = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "prometheus", "alerts.yml"))
MINUTES = 100
# Of the machine's speed, not of the state.
OF_THE_MACHINE = {"IsthmusBubbleRatioHigh", "IsthmusLinkRateDropped", "IsthmusHeartbeatOld"}


def get(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def samples(text, labels):
    """{series: value} of a page, with the target's labels where the page has none of that name."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
        if not match:
            continue
        own = dict(re.findall(r'(\w+)="([^"]*)"', match.group(2) or ""))
        merged = {**labels, **own}
        found[match.group(1) + "{" + ", ".join(f'{k}="{v}"' for k, v in sorted(merged.items())) + "}"] = float(match.group(3))
    return found


class Timeline:
    """States one after the other, as input of promtool."""

    def __init__(self):
        self.states = []  # (name, first scrape, second scrape, seconds between)

    def series(self):
        names = sorted({s for _, first, second, _ in self.states for s in {**first, **second}})
        for name in names:
            values, there = [], False
            for _, first, second, seconds in self.states:
                if name not in second:
                    values.append(f"stale _x{MINUTES - 1}" if there else f"_x{MINUTES}")
                    there = False
                    continue
                there, value = True, second[name]
                if value != value or abs(value) == float("inf"):
                    values.append(" ".join([str(value).replace("nan", "NaN").replace("inf", "Inf")] * MINUTES))
                    continue
                counts = "_total{" in name and name in first
                growth = (value - first[name]) / seconds * 60 if counts else 0
                values.append(f"{value!r}+{max(growth, 0)!r}x{MINUTES - 1}")
            yield name, " ".join(values)

    def firing(self, directory):
        """{state: [(alert, job or node)]} at the end of each state."""
        path = os.path.join(directory, "states.yml")
        test = {"rule_files": [RULES], "evaluation_interval": "1m", "tests": [{
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in self.series()],
            # What it finds is in its complaint: it is asked to find nothing.
            "promql_expr_test": [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{MINUTES * (i + 1) - 1}m",
                                  "exp_samples": []} for i in range(len(self.states))]}]}
        with open(path, "w") as f:
            json.dump(test, f)
        done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
        output = done.stdout + done.stderr
        if done.returncode not in (0, 1) or "parse error" in output:
            raise AssertionError(output[-3000:])
        found = {name: [] for name, *_ in self.states}
        for expr, at, got in re.findall(r'expr: "(.*?)", time: (\S+),\s+exp:.*?\s+got: ?(.*)', output):
            hours, minutes = re.match(r"(?:(\d+)h)?(?:(\d+)m)?", at).groups()
            state = self.states[(int(hours or 0) * 60 + int(minutes or 0)) // MINUTES][0]
            for labels in re.findall(r"\{(.*?)\}", got):
                label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                about = label.get("node") if label["alertname"].startswith("IsthmusDaemon") else label.get("job")
                if label["alertname"] not in OF_THE_MACHINE:
                    found[state].append((label["alertname"], about))
        return {name: sorted(alerts) for name, alerts in found.items()}


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (package prometheus)")
class AlertsTest(unittest.TestCase):
    def scrape(self):
        found = {}
        for group in json.loads(get(f"http://{self.cluster.http}/sd")):
            for address in group["targets"]:
                # The coordinator names this host; here it listens on loopback.
                address = self.cluster.http if group["labels"]["role"] == "coordinator" else address
                labels = {**group["labels"], "instance": address}
                up = samples("up 1", labels)
                try:
                    up.update(samples(get(f"http://{address}/metrics"), labels))
                except OSError:
                    up = samples("up 0", labels)
                found.update(up)
        return found

    def steps(self, scraped):
        return sum(v for s, v in scraped.items() if s.startswith("isthmus_steps_total"))

    def see(self, state, moves=False):
        first, began = self.scrape(), time.monotonic()
        end = began + 60
        while True:
            time.sleep(2)
            second = self.scrape()
            if not moves or self.steps(second) > self.steps(first) or time.monotonic() > end:
                break
        self.timeline.states.append((state, first, second, time.monotonic() - began))
        return second

    def test_what_fires_in_each_state(self):
        cluster = self.cluster = Cluster()
        self.addCleanup(cluster.close)
        self.timeline = Timeline()
        cluster.start(2)
        expected = {"idle": []}
        self.see("idle")

        # A stage that can't make its spill directory fails before the first step.
        spill = os.path.join(cluster.dir, "d1", "spill")
        shutil.rmtree(spill, ignore_errors=True)
        open(spill, "w").close()
        job = cluster.job(recipe__steps=1000000, recipe__eval_every=0, checkpoint__every=20)
        cluster.submit(job)
        failed = cluster.wait_state({"failed"})["job_id"]
        page = self.see("failed before its first step")
        self.assertEqual([s for s in page if s.startswith("isthmus_job_loss")], [], "a loss of a job that has none")
        expected["failed before its first step"] = [("IsthmusJobPaused", failed)]
        os.remove(spill)

        cluster.submit(job)
        cluster.wait_state({"running"}, step=40, stored=True)
        page = self.see("running", moves=True)
        self.assertEqual(len([s for s in page if s.startswith("isthmus_job_loss")]), 1)
        expected["running"] = []

        running = cluster.status()["job_id"]
        cluster.daemons["d1"].kill()
        cluster.wait_state({"paused"})
        cluster.wait_nodes(1)
        self.see("paused, a daemon dead")
        expected["paused, a daemon dead"] = [("IsthmusDaemonDown", "d1"), ("IsthmusJobPaused", running)]

        address = cluster.address
        cluster.coordinator.terminate()
        cluster.start_coordinator(address)
        cluster.wait_nodes(1)
        self.see("the coordinator restarted")
        expected["the coordinator restarted"] = [("IsthmusDaemonDown", "d1"), ("IsthmusJobPaused", running)]

        cluster.start_daemon("d1")
        cluster.wait_nodes(2)
        cluster.submit(job, "--resume")
        cluster.wait_state({"running"}, step=int(cluster.status()["step"]) + 5)
        self.see("resumed, all daemons back", moves=True)
        expected["resumed, all daemons back"] = []

        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        cluster.wait_state({"stopped"})
        cluster.submit(cluster.job("short", recipe__steps=20))
        cluster.wait_state({"finished"}, "short")
        page = self.see("finished")
        self.assertEqual([s for s in page if re.match(r"isthmus_(job_)?(loss|learning_rate|tokens_per_second)", s)], [])
        expected["finished"] = []

        firing = self.timeline.firing(cluster.dir)
        self.assertEqual(firing, expected)


if __name__ == "__main__":
    main()
