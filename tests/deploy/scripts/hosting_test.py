"""Units, container file and manifests: well-formed, and they use only flags, ports and libraries that the programs have."""
import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

try:
    import yaml
except ImportError:
    yaml = None

DEPLOY = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy"))
BIN = os.environ.get("ISTHMUS_BIN", os.path.join(DEPLOY, "..", "build", "bin"))
PROGRAMS = ("isthmus-coordinator", "isthmusd")
UNITS = sorted(glob.glob(os.path.join(DEPLOY, "systemd", "*.service")))


def read(*path):
    with open(os.path.join(DEPLOY, *path)) as f:
        return f.read()


def program(name):
    path = os.path.join(BIN, name)
    return path if os.path.exists(path) else None


def on_debian_12():
    try:
        with open("/etc/os-release") as f:
            return 'VERSION_ID="12"' in f.read()
    except OSError:
        return False


class UnitsTest(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_accepts_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for unit in UNITS:
                with open(os.path.join(folder, os.path.basename(unit)), "w") as f:
                    f.write(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", read("systemd", os.path.basename(unit))))
            done = subprocess.run(["systemd-analyze", "verify", *glob.glob(folder + "/*.service")],
                                  capture_output=True, text=True)
            about_ours = [line for line in done.stderr.splitlines() if "isthmus" in line]
            self.assertEqual(about_ours, [])


class ReadmeTest(unittest.TestCase):
    def test_every_folder_and_file_that_a_purge_deletes_is_named(self):
        readme = read("README.md")
        for script in glob.glob(os.path.join(DEPLOY, "debian", "*", "postrm")):
            with open(script) as f:
                deleted = re.findall(r"(/etc/default/\S+|/var/lib/isthmus\S+)", f.read())
            self.assertTrue(deleted, script)
            for path in deleted:
                self.assertIn(f"`{path}`", readme)

    def test_the_folder_that_grafana_reads_is_named(self):
        folder = re.search(r"path: ([^}]+)}", read("grafana", "provisioning", "dashboards", "isthmus.yaml")).group(1)
        self.assertIn(folder, read("README.md"))


class FlagsTest(unittest.TestCase):
    """Every `program --flag` in the files and the READMEs is a flag that --help knows."""

    def uses(self):
        texts = [read("systemd", os.path.basename(u)) for u in UNITS]
        texts += [read("container", "compose.yaml"), read("k8s", "isthmus.yaml"), read("README.md"), read("..", "README.md")]
        for text in texts:
            joined = text.replace("\\\n", " ")
            for match in re.finditer(r"(isthmus-coordinator|isthmusd)((?:[ ,\[\n]+(?!isthmus)[^\n]*?)--[^#`]*?)(?=\n\n|\n\S|\n +[a-z_]+:|`|$)", joined):
                for flag in re.findall(r"--[a-z-]+", match.group(2)):
                    yield match.group(1), flag

    def test_flags_exist(self):
        used = set(self.uses())
        self.assertGreater(len(used), 8)
        for name in PROGRAMS:
            if not program(name):
                self.skipTest(f"{name} is not built")
            known = subprocess.run([program(name), "--help"], capture_output=True, text=True).stdout
            for _, flag in sorted(u for u in used if u[0] == name):
                self.assertRegex(known, re.escape(flag) + r"\b", f"{name} has no {flag}")


@unittest.skipUnless(yaml, "PyYAML is not installed")
class ManifestsTest(unittest.TestCase):
    def test_compose_starts_three_daemons(self):
        services = yaml.safe_load(read("container", "compose.yaml"))["services"]
        daemons = [s for s in services.values() if "isthmusd" in str(s.get("command"))]
        self.assertEqual(len(daemons), 3)
        self.assertEqual(len({d["environment"]["NAME"] for d in daemons}), 3)

    def test_no_unauthenticated_port_is_published(self):
        parts = list(yaml.safe_load_all(read("k8s", "isthmus.yaml")))
        for part in parts:
            if part["kind"] == "Service":
                self.assertEqual(part["spec"].get("type", "ClusterIP"), "ClusterIP", part["metadata"]["name"])
            self.assertNotIn("hostPort", str(part))
            self.assertNotIn("hostNetwork", str(part))
        policies = [p["spec"] for p in parts if p["kind"] == "NetworkPolicy"]
        self.assertEqual(policies, [{"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]}])
        services = yaml.safe_load(read("container", "compose.yaml"))["services"]
        published = [port for s in services.values() for port in s.get("ports", [])]
        self.assertTrue(published)
        for port in published:
            self.assertRegex(port, r"^127\.0\.0\.1:")

    def test_kubernetes_ports_agree(self):
        parts = list(yaml.safe_load_all(read("k8s", "isthmus.yaml")))
        services = {p["metadata"]["name"]: {q["port"] for q in p["spec"]["ports"]} for p in parts if p["kind"] == "Service"}
        for part in parts:
            if part["kind"] != "StatefulSet":
                continue
            container = part["spec"]["template"]["spec"]["containers"][0]
            self.assertEqual({p["containerPort"] for p in container["ports"]}, services[part["spec"]["serviceName"]])
            claims = {c["metadata"]["name"] for c in part["spec"]["volumeClaimTemplates"]}
            self.assertEqual({m["name"] for m in container["volumeMounts"]}, claims)

    def test_kubernetes_daemons_have_a_volume_for_their_data(self):
        parts = list(yaml.safe_load_all(read("k8s", "isthmus.yaml")))
        spec = [p for p in parts if p["kind"] == "StatefulSet" and p["metadata"]["name"] == "isthmusd"][0]["spec"]
        container = spec["template"]["spec"]["containers"][0]
        data = container["args"][container["args"].index("--data-dir") + 1]
        mounted = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        self.assertIn(mounted.get(data), {c["metadata"]["name"] for c in spec["volumeClaimTemplates"]})
        filled = spec["template"]["spec"]["initContainers"][0]
        self.assertEqual({m["mountPath"]: m["name"] for m in filled["volumeMounts"]}, {data: mounted[data]})
        self.assertIn(f"{data}/", str(filled["command"]))


class ContainerTest(unittest.TestCase):
    @unittest.skipUnless(on_debian_12() and shutil.which("ldd"), "the image is Debian 12's")
    def test_image_holds_every_library_the_programs_link(self):
        installed = set(re.findall(r"\blib[a-z0-9+.-]+", read("container", "Containerfile")))
        for name in (*PROGRAMS, "isthmus", "isthmus-generate", "isthmus-multilevel", "isthmus-study"):
            if not program(name):
                self.skipTest(f"{name} is not built")
            needed = subprocess.run(["objdump", "-p", program(name)], capture_output=True, text=True).stdout
            for library in re.findall(r"NEEDED +(\S+)", needed):
                owner = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True).stdout
                owners = {line.split(":")[0] for line in owner.splitlines()}
                if owners & {"libc6", "libstdc++6", "libgcc-s1"}:
                    continue
                self.assertTrue(owners & installed, f"{name} needs {library}, which is in {owners or 'no package'}")


if __name__ == "__main__":
    unittest.main()
