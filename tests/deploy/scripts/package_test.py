"""What `cmake --install` and the Debian packages put on a machine, and that the programs run from there.

  package_test.py BUILD_FOLDER           installs below a folder, unpacks the packages, runs the programs (seconds)
  package_test.py BUILD_FOLDER --root    also installs the packages with apt in a root of its own made by debootstrap (minutes, root, the mirror)
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.abspath(sys.argv.pop(1))
IN_ROOT = "--root" in sys.argv and bool(sys.argv.remove("--root") or True)
VERSION = [line.split("=")[1].strip() for line in open(os.path.join(BUILD, "CMakeCache.txt")) if line.startswith("CMAKE_PROJECT_VERSION:")][0]
PACKAGES = {
    "isthmus": ["bin/isthmus", "bin/isthmus-multilevel", "bin/isthmus-wan", "share/isthmus/links/regions.csv", "share/isthmus/tokenize.py", "share/isthmus/tensorboard.py",
                "share/isthmus/jobs/quickstart.yaml", "share/man/man1/isthmus.1", "share/man/man1/isthmus-multilevel.1", "share/man/man5/isthmus-job.5",
                "share/bash-completion/completions/isthmus", "share/zsh/vendor-completions/_isthmus", "share/fish/vendor_completions.d/isthmus.fish",
                "share/doc/isthmus/README.md", "share/doc/isthmus/copyright"],
    "isthmusd": ["bin/isthmusd", "bin/isthmus-generate", "bin/isthmus-study", "lib/systemd/system/isthmusd.service", "share/man/man1/isthmusd.1",
                 "share/isthmus/isthmusd.default"],
    "isthmus-coordinator": ["bin/isthmus-coordinator", "lib/systemd/system/isthmus-coordinator.service", "share/man/man1/isthmus-coordinator.1",
                            "share/isthmus/prometheus/alerts.yml", "share/isthmus/grafana/isthmus.json"],
}
PROGRAMS = ["isthmus", "isthmusd", "isthmus-coordinator", "isthmus-generate", "isthmus-multilevel", "isthmus-study", "isthmus-wan"]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.pop("timeout", 120), **options)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def manifests():
    return {path: (open(path).read(), os.stat(path).st_mtime_ns) for path in glob.glob(os.path.join(BUILD, "install_manifest*.txt"))}


def missing_programs():
    return [p for p in PROGRAMS if not os.path.exists(os.path.join(BUILD, "bin", p))]


@unittest.skipIf(missing_programs(), f"not built: {missing_programs()}")
class PackageTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="isthmus-package-")
        self.addCleanup(temporary.cleanup)
        self.dir = temporary.name
        before = manifests()
        self.addCleanup(lambda: self.assertEqual(manifests(), before, "the build folder's lists of what was installed"))

    def installer(self):
        """A folder for `cmake --install` that installs what BUILD holds, but leaves its install_manifest.txt, by which a user uninstalls, as it is."""
        folder = os.path.join(self.dir, "installer")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(BUILD, "cmake_install.cmake")) as f:
            script, count = re.subn(r'file\(WRITE "' + re.escape(BUILD) + "/", lambda _: f'file(WRITE "{folder}/', f.read())
        self.assertGreater(count, 0, "cmake_install.cmake writes its manifest in another way")
        with open(os.path.join(folder, "cmake_install.cmake"), "w") as f:
            f.write(script)
        return folder

    def check_programs(self, prefix):
        """Each runs from there and finds what lies beside it."""
        for program in PROGRAMS:
            said = run(os.path.join(prefix, "bin", program), "--version")
            self.assertEqual(said, f"{program} {VERSION}\n")
        regions = run(os.path.join(prefix, "bin", "isthmus-wan"), "show", "regions")
        self.assertIn("us-east", regions)
        job = os.path.join(prefix, "share", "isthmus", "jobs", "quickstart.yaml")
        self.assertIn("no errors", run(os.path.join(prefix, "bin", "isthmus"), "check", job))

    def test_install_below_a_prefix(self):
        prefix = os.path.join(self.dir, "usr")
        run("cmake", "--install", self.installer(), "--prefix", prefix)
        for names in PACKAGES.values():
            for name in names:
                self.assertTrue(os.path.exists(os.path.join(prefix, name)), name)
        self.check_programs(prefix)
        with open(os.path.join(prefix, "share/man/man1/isthmusd.1")) as f:
            page = f.read()
        self.assertIn("\\-\\-state\\-dir", page)
        if shutil.which("groff"):
            for path in glob.glob(prefix + "/share/man/man*/*"):
                done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", path], capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""), path)

    def test_links_of_installed_pages(self):
        prefix = os.path.join(self.dir, "usr")
        run("cmake", "--install", self.installer(), "--prefix", prefix, "--component", "cli")
        pages = glob.glob(prefix + "/share/doc/**/*.md", recursive=True)
        self.assertGreater(len(pages), 10)
        for page in pages:
            with open(page) as f:
                links = re.findall(r"\]\(([^)#\s]+)", f.read())
            for link in links:
                if "://" not in link:
                    self.assertTrue(os.path.exists(os.path.join(os.path.dirname(page), link)), f"{page}: {link}")

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "dpkg-dev is not installed")
    def test_packages(self):
        packages = self.make_packages()
        for name, files in PACKAGES.items():
            self.assertEqual(run("dpkg-deb", "-f", packages[name], "Package", "Version").split(), ["Package:", name, "Version:", VERSION])
            depends = run("dpkg-deb", "-f", packages[name], "Depends")
            self.assertIn("libc6", depends, name)
            listed = run("dpkg-deb", "-c", packages[name])
            for file in files:
                self.assertIn(f"./usr/{file}\n", listed, name)
            self.assertNotIn(BUILD, listed)
            run("dpkg", "-x", packages[name], os.path.join(self.dir, "root"))
        daemon = run("dpkg-deb", "-f", packages["isthmusd"], "Depends")
        self.assertIn("libopenblas0-pthread", daemon)
        self.assertRegex(daemon, "libtorch|libgrpc")
        for name in ("isthmus", "isthmus-coordinator"):  # they start in no time, anywhere
            self.assertNotIn("libtorch", run("dpkg-deb", "-f", packages[name], "Depends"))
        scripts = os.path.join(self.dir, "control")
        run("dpkg-deb", "-e", packages["isthmusd"], scripts)
        for script in ("postinst", "prerm", "postrm"):
            run("sh", "-n", os.path.join(scripts, script))
        self.check_programs(os.path.join(self.dir, "root", "usr"))

    def make_packages(self):
        run("cpack", "-G", "DEB", "-B", os.path.join(self.dir, "packages"), "-D", f"CPACK_INSTALL_CMAKE_PROJECTS={self.installer()};Isthmus;ALL;/",
            cwd=BUILD, timeout=300)
        found = {os.path.basename(p).split("_")[0]: p for p in glob.glob(os.path.join(self.dir, "packages", "*.deb"))}
        self.assertEqual(sorted(found), sorted(PACKAGES))
        return found

    @unittest.skipUnless(IN_ROOT, "long; run with --root")
    def test_apt_installs_and_removes_them_in_a_clean_root(self):
        self.assertTrue(os.geteuid() == 0 and shutil.which("debootstrap"), "needs root and the package debootstrap")
        packages = self.make_packages()
        root = os.path.join(self.dir, "debian")
        with open("/etc/os-release") as f:
            suite = [line.split("=")[1].strip() for line in f if line.startswith("VERSION_CODENAME=")][0]
        run("debootstrap", "--variant=minbase", suite, root, timeout=900)
        for path in packages.values():
            shutil.copy(path, os.path.join(root, "root"))

        def chroot(command):
            return run("chroot", root, "sh", "-ec", command, timeout=1500, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive",
                                                                                "LC_ALL": "C.UTF-8"})
        shutil.copy("/etc/resolv.conf", os.path.join(root, "etc", "resolv.conf"))
        chroot("apt-get update -q && apt-get install -yq --no-install-recommends /root/*.deb")
        for program in PROGRAMS:
            self.assertEqual(chroot(f"{program} --version"), f"{program} {VERSION}\n")
        self.assertIn("no errors", chroot("isthmus check /usr/share/isthmus/jobs/quickstart.yaml"))
        self.assertIn("ISTHMUS_COORDINATOR", chroot("cat /etc/default/isthmusd"))
        chroot("bash -n /usr/share/bash-completion/completions/isthmus")  # /proc is not there, so it can't complete
        chroot("mkdir -p /tmp/state && timeout 60 isthmusd --doctor --coordinator 127.0.0.1:1 --state-dir /tmp/state --data-dir /srv/isthmus | grep 'matrix products'")
        chroot("apt-get purge -yq isthmus isthmusd isthmus-coordinator")
        self.assertEqual(chroot("find / -xdev -name '*isthmus*' -not -path '/root/*' -not -path '/var/lib/apt/*' -not -path '/var/cache/*' -not -path '/proc/*' "
                                "-not -path '/srv/*' -not -path '/tmp/*' -not -path '/var/log/*'"), "")


if __name__ == "__main__":
    unittest.main()
