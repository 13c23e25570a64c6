"""deploy/tensorboard.py: its event files, read by protobuf's own parser (protoc --decode) and by TensorFlow's checksum test values."""
import glob
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
SCRIPT = os.path.join(ROOT, "deploy", "tensorboard.py")
CSV = ("step,loss,tokens_per_s,committed,validation_loss,unix_ms,generation\n"
       "0,5.5,100,1,,1700000000500,1\n"
       "1,4.25,1e3,1,4.5,1700000001500,1\n"
       "2,,0,0,,1700000002500,2\n")
# What TensorFlow's event.proto and summary.proto say, as far as scalars need it.
PROTO = """syntax = "proto3"; package t;
message Value { string tag = 1; float simple_value = 2; }
message Summary { repeated Value value = 1; }
message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
"""


def script():
    spec = importlib.util.spec_from_file_location("events", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def records(path):
    """By the definition of TFRecord; the checksums are compared with those of a bitwise CRC-32C of this file's own."""
    def crc(data):
        value = 0xFFFFFFFF
        for byte in data:
            for bit in range(8):
                lsb = (value ^ (byte >> bit)) & 1
                value = (value >> 1) ^ (0x82F63B78 * lsb)
        value ^= 0xFFFFFFFF
        return (((value >> 15) | (value << 17)) + 0xA282EAD8) % 2 ** 32
    with open(path, "rb") as f:
        while head := f.read(12):
            length, check = struct.unpack("<QI", head)
            data = f.read(length)
            assert crc(head[:8]) == check and (crc(data),) == struct.unpack("<I", f.read(4))
            yield data


class TensorBoardTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = temporary.name

    def convert(self, text, code=0, out="run", source=()):
        data = text if isinstance(text, bytes) else text.encode()
        done = subprocess.run([sys.executable, SCRIPT, "--out", os.path.join(self.dir, out), *source], input=data, capture_output=True, timeout=60)
        said = (done.stdout + done.stderr).decode()
        self.assertEqual(done.returncode, code, said)
        self.assertEqual(len(said.splitlines()), 1, said)
        return said

    def events(self):
        return list(records(glob.glob(os.path.join(self.dir, "run", "events.out.tfevents.*"))[0]))

    def test_checksum_is_crc32c(self):
        self.assertEqual(script().masked_crc(b"123456789"), ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_protobuf_reads_them(self):
        self.convert(CSV)
        with open(os.path.join(self.dir, "event.proto"), "w") as f:
            f.write(PROTO)
        texts = []
        for data in self.events():
            done = subprocess.run(["protoc", "--decode=t.Event", f"-I{self.dir}", "event.proto"], input=data, capture_output=True, timeout=30)
            self.assertEqual(done.returncode, 0, done.stderr)
            texts.append(re.sub(r"\s+", " ", done.stdout.decode()))
        self.assertIn('file_version: "brain.Event:2"', texts[0])
        self.assertEqual(texts[1], 'wall_time: 1700000000.5 summary { value { tag: "loss" simple_value: 5.5 } '
                                   'value { tag: "tokens_per_s" simple_value: 100 } } ')
        self.assertEqual(texts[2], 'wall_time: 1700000001.5 step: 1 summary { value { tag: "loss" simple_value: 4.25 } '
                                   'value { tag: "tokens_per_s" simple_value: 1000 } value { tag: "validation_loss" simple_value: 4.5 } } ')
        self.assertEqual(texts[3], 'wall_time: 1700000002.5 step: 2 summary { value { tag: "tokens_per_s" } } ')

    def test_what_is_no_record_is_refused(self):
        """In one sentence, with the line, and nothing is left of what was converted before it."""
        head = "step,loss,unix_ms\n1,5.5,1700000000500\n"
        cases = [("a,b\n1,2\n", "isthmus logs JOB --csv"), ("", "isthmus logs JOB --csv"), ("step,unix_ms\n", "no records"),
                 ("step,unix_ms\nx,1\n", "standard input, line 2"), (head + "2,1,1,1\n", "line 3: more fields"), (head + "2,1\n", "line 3: fewer fields"),
                 (head + f"2,1,{'9' * 400}\n", "line 3: step and unix_ms"), (head + f"{'9' * 30},1,1\n", "out of range"), (head + "-1,1,1\n", "out of range"),
                 (head + "2,1e300,1\n", "beyond 32 bits"), (head.encode() + b"\xa3\xff\n", "not UTF-8"), ("step,unix_ms\n".encode("utf-16"), "not UTF-8"),
                 (head + '2,"1\n', "this is no CSV"), (head + f"2,{'1' * 200000},1\n", "this is no CSV")]
        for text, words in cases:
            with self.subTest(words=words, text=text[:80]):
                self.assertIn(words, self.convert(text, code=2))
                self.assertEqual(glob.glob(os.path.join(self.dir, "run", "*")), [])

    def test_lines_may_end_in_any_way(self):
        for end in ("\r", "\r\n", "\n"):
            out = f"run{ord(end[0])}{len(end)}"
            self.assertIn("3 steps", self.convert(CSV.replace("\n", end), out=out))
            path = os.path.join(self.dir, "records.csv")
            with open(path, "wb") as f:
                f.write(b"\xef\xbb\xbf" + CSV.replace("\n", end).encode())
            self.assertIn("3 steps", self.convert("", out=out + "f", source=[path]))

    def test_files_where_directories_are_wanted_and_the_other_way_round(self):
        path = os.path.join(self.dir, "file")
        with open(path, "w") as f:
            f.write(CSV)
        self.assertIn("file is a file; name the directory", self.convert(CSV, code=2, out="file"))
        with open(path) as f:
            self.assertEqual(f.read(), CSV)
        self.assertIn("can't read " + self.dir, self.convert("", code=2, source=[self.dir]))
        self.assertIn("can't read none: No such file", self.convert("", code=2, source=["none"]))
        self.assertFalse(os.path.exists(os.path.join(self.dir, "run")))

    def test_a_file_is_read_as_well(self):
        path = os.path.join(self.dir, "records.csv")
        with open(path, "w") as f:
            f.write(CSV)
        done = subprocess.run([sys.executable, SCRIPT, "--out", os.path.join(self.dir, "run"), path], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.events()), 4)


if __name__ == "__main__":
    unittest.main()
