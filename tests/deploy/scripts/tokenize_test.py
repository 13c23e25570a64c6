"""deploy/tokenize.py: what it writes, read by the formats' definitions, and what it refuses."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import tokenizers
except ImportError:
    print("the tokenizers package is not installed (tests/requirements.txt)")
    sys.exit(77)

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
TEXT = "It's the heaven, and the earth.\n\n  Two blanks;  für 42 days!\n" * 300


def read_shard(path, magic=20240520, version=1, element="H"):
    with open(path, "rb") as f:
        data = f.read()
    header = struct.unpack_from("<256i", data)
    assert header[:2] == (magic, version) and not any(header[3:]), header[:4]
    tokens = list(struct.unpack(f"<{header[2]}{element}", data[1024:]))
    return tokens


class TokenizeTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = temporary.name
        self.text = os.path.join(self.dir, "text.txt")
        self.write(self.text, TEXT)
        self.out = os.path.join(self.dir, "out")

    def write(self, path, text):
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write(text)

    def run_it(self, *arguments, code=0):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "deploy", "tokenize.py"), *arguments, "--out", self.out],
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        if code:
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def tokenizer(self, folder=None):
        return tokenizers.Tokenizer.from_file(os.path.join(folder or os.path.join(self.out, "tokenizer"), "tokenizer.json"))

    def test_shards_hold_the_text(self):
        said = self.run_it(self.text, self.text, "--vocabulary", "400")
        tokens = read_shard(os.path.join(self.out, "train.bin"))
        trained = self.tokenizer()
        one = trained.encode(TEXT).ids + [trained.token_to_id("<|endoftext|>")]
        self.assertEqual(tokens, one + one)
        self.assertEqual(trained.decode(tokens, skip_special_tokens=True), TEXT + TEXT)
        self.assertIn(f"vocabulary: {max(trained.get_vocab().values()) + 1}", said)
        self.assertFalse(os.path.exists(os.path.join(self.out, "val.bin")))
        with open(os.path.join(self.out, "tokenizer", "tokenizer_config.json")) as f:
            self.assertEqual(json.load(f)["eos_token"], "<|endoftext|>")

    def test_a_text_of_many_blocks_has_the_tokens_of_the_whole(self):
        """The pieces of a text are cut where no token can reach over: 2.4 million characters here, with blanks of every kind."""
        self.run_it(self.text, "--vocabulary", "400")
        large = ("word  \n \n\tnext\u2003\u00a0end. " * 17 + "\n") * 6000
        self.write(self.text, large)
        folder = os.path.join(self.out, "tokenizer")
        trained = self.tokenizer()
        self.out = os.path.join(self.dir, "large")
        self.run_it(self.text, "--tokenizer", folder)
        self.assertEqual(read_shard(os.path.join(self.out, "train.bin"))[:-1], trained.encode(large).ids)

    def test_long_lines_are_cut_at_blanks(self):
        """Old line ends and a text in one line are read in pieces too; one that has no place to cut it is refused, not held in memory."""
        self.run_it(self.text, "--vocabulary", "400")
        folder = os.path.join(self.out, "tokenizer")
        trained = self.tokenizer()
        for name, words in (("returns", "word  next\u2003end.\r"), ("spaces", "word\u00a0next  end. ")):
            large = words * ((5 << 18) // len(words))
            self.write(self.text, large)
            self.out = os.path.join(self.dir, name)
            self.run_it(self.text, "--tokenizer", folder)
            self.assertEqual(read_shard(os.path.join(self.out, "train.bin"))[:-1], trained.encode(large).ids)
        self.write(self.text, "x" * (5 << 20))
        self.out = os.path.join(self.dir, "none")
        said = self.run_it(self.text, "--tokenizer", folder, code=2)
        self.assertIn("text.txt has 4194304 characters without", said)
        self.assertIn("break it into lines", said)
        self.assertFalse(os.path.exists(self.out))

    def test_validation_and_small_shards(self):
        self.run_it(self.text, "--vocabulary", "300", "--validation", "0.1", "--shard-tokens", "4000")
        names = sorted(os.listdir(self.out))
        self.assertIn("train_000000.bin", names)
        self.assertIn("train_000001.bin", names)
        self.assertNotIn("train.bin", names)
        shards = [read_shard(os.path.join(self.out, n)) for n in names if n.startswith("train")]
        held_back = read_shard(os.path.join(self.out, "val.bin"))
        everything = sum(shards, []) + held_back
        self.assertEqual(self.tokenizer().decode(everything, skip_special_tokens=True), TEXT)
        self.assertEqual(len(held_back), len(everything) // 10)
        self.assertTrue(all(len(s) == 4000 for s in shards[:-1]))

    def test_gpt2s_pair_of_files_is_taken(self):
        self.run_it(self.text, "--vocabulary", "300")
        pair = os.path.join(self.dir, "pair")
        os.mkdir(pair)
        trained = self.tokenizer()
        trained.model.save(pair)
        self.out = os.path.join(self.dir, "again")
        self.run_it(self.text, "--tokenizer", pair)
        self.assertEqual(read_shard(os.path.join(self.out, "train.bin"))[:-1], trained.encode(TEXT).ids)
        self.assertTrue(os.path.exists(os.path.join(self.out, "tokenizer", "merges.txt")))
        os.rename(os.path.join(pair, "vocab.json"), os.path.join(pair, "encoder.json"))
        os.rename(os.path.join(pair, "merges.txt"), os.path.join(pair, "vocab.bpe"))
        self.out = os.path.join(self.dir, "by-openais-names")
        self.run_it(self.text, "--tokenizer", pair)
        self.assertEqual(read_shard(os.path.join(self.out, "train.bin"))[:-1], trained.encode(TEXT).ids)

    def large_tokenizer(self, ids):
        """In a folder: the bytes are the last ids, and what is before them is never used."""
        folder = os.path.join(self.dir, "large")
        os.makedirs(folder, exist_ok=True)
        vocabulary = {c: ids - 256 + i for i, c in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
        vocabulary.update({f"token{i}": i for i in range(ids - 256)})
        large = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
        large.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        large.decoder = tokenizers.decoders.ByteLevel()
        large.save(os.path.join(folder, "tokenizer.json"))
        return folder

    def test_a_large_vocabulary_makes_shards_of_32_bits(self):
        folder = self.large_tokenizer(70000)
        said = self.run_it(self.text, "--tokenizer", folder)
        self.assertIn("vocabulary: 70000", said)
        tokens = read_shard(os.path.join(self.out, "train.bin"), 20240801, 7, "I")
        self.assertGreater(max(tokens), 65536)
        self.assertEqual(self.tokenizer().decode(tokens), TEXT)
        self.out = os.path.join(self.dir, "narrow")
        self.run_it(self.text, "--tokenizer", self.large_tokenizer(65536))
        self.assertEqual(self.tokenizer().decode(read_shard(os.path.join(self.out, "train.bin"))), TEXT)

    def test_a_vocabulary_that_is_too_large_is_refused(self):
        folder = self.large_tokenizer(300)
        path = os.path.join(folder, "tokenizer.json")
        with open(path, encoding="utf-8") as f:
            file = json.load(f)
        file["model"]["vocab"]["token0"] = 1999999
        self.write(path, json.dumps(file))
        said = self.run_it(self.text, "--tokenizer", folder, code=2)
        self.assertIn("ids up to 1999999", said)
        self.assertIn("1048576 at most", said)
        self.assertIn("1048576", self.run_it(self.text, "--vocabulary", "1048577", code=2))
        self.assertFalse(os.path.exists(self.out))

    def test_numbers_are_decimal_digits_in_their_range(self):
        for flag, values in (("--vocabulary", ("0", "256", "1048577", "-5", "+300", "0x200", "1" * 30, "")), ("--shard-tokens", ("0", "1", str(2 ** 31), "1e6", " 30"))):
            for value in values:
                said = self.run_it(self.text, f"{flag}={value}", code=2)
                self.assertIn(f"{flag} {value}: must be a whole number from", said)
        self.assertFalse(os.path.exists(self.out))

    def test_files_and_directories_in_the_place_of_the_other(self):
        self.assertIn("is a directory", self.run_it(self.dir, code=2))
        fifo = os.path.join(self.dir, "fifo")
        os.mkfifo(fifo)
        self.assertIn("no regular file", self.run_it(fifo, code=2))
        self.assertIn("text.txt is no directory", self.run_it(self.text, "--tokenizer", self.text, code=2))
        os.makedirs(os.path.join(self.out, "train.bin"))
        self.assertIn("train.bin is a directory", self.run_it(self.text, "--force", code=2))
        self.out = os.path.join(self.dir, "other")
        os.mkdir(self.out)
        self.write(os.path.join(self.out, "tokenizer"), "")
        self.assertIn("tokenizer is a file", self.run_it(self.text, "--force", code=2))
        self.out = self.text
        self.assertIn("text.txt is a file: name a directory", self.run_it(self.text, "--force", code=2))
        with open(self.text, encoding="utf-8", newline="") as f:
            self.assertEqual(f.read(), TEXT)

    def test_what_is_refused_writes_over_nothing(self):
        """With --force too: the text may lie in --out, and a text that turns out bad at its end leaves the old shards."""
        self.run_it(self.text, "--vocabulary", "300")
        old = {}
        for name in ("train.bin", "tokenizer/tokenizer.json"):
            with open(os.path.join(self.out, name), "rb") as f:
                old[name] = f.read()
        bad = os.path.join(self.dir, "bad.txt")
        with open(bad, "wb") as f:
            f.write(b"good " * 100 + b"\xff")
        nul = os.path.join(self.dir, "nul.txt")
        self.write(nul, "a\0b\0")
        inside = os.path.join(self.out, "train_text.bin")
        self.write(inside, TEXT)
        link = os.path.join(self.dir, "link.txt")
        os.symlink(inside, link)
        tokenizer = os.path.join(self.out, "tokenizer")
        for text, words in ((bad, "bad.txt is not UTF-8"), (nul, "nul.txt holds NUL"), (inside, "written over"), (link, "written over"),
                            (os.path.join(tokenizer, "tokenizer.json"), "written over")):
            self.assertIn(words, self.run_it(text, "--vocabulary", "300", "--force", code=2))
            self.assertIn(words, self.run_it(self.text, text, "--tokenizer", tokenizer, "--force", code=2))
        self.write(bad, "")
        self.assertIn("too few", self.run_it(bad, "--tokenizer", tokenizer, "--force", code=2))
        for name, data in old.items():
            with open(os.path.join(self.out, name), "rb") as f:
                self.assertEqual(f.read(), data, name)
        with open(inside, encoding="utf-8", newline="") as f:
            self.assertEqual(f.read(), TEXT)

    def test_a_tokenizer_in_out_may_be_used_again(self):
        self.run_it(self.text, "--vocabulary", "300")
        before = read_shard(os.path.join(self.out, "train.bin"))
        self.run_it(self.text, "--tokenizer", os.path.join(self.out, "tokenizer"), "--force")
        self.assertEqual(read_shard(os.path.join(self.out, "train.bin")), before)

    def test_a_tokenizer_that_does_not_serve_is_refused(self):
        folder = os.path.join(self.dir, "odd")
        os.mkdir(folder)
        for model, words in ((tokenizers.models.BPE(), "has no tokens"), (tokenizers.models.WordLevel({"a": 0}, unk_token="?"), "can't be encoded")):
            tokenizers.Tokenizer(model).save(os.path.join(folder, "tokenizer.json"))
            self.assertIn(words, self.run_it(self.text, "--tokenizer", folder, code=2))
        self.assertFalse(os.path.exists(self.out))

    def test_wrong_usage_is_refused_in_words(self):
        latin = os.path.join(self.dir, "latin.txt")
        with open(latin, "wb") as f:
            f.write(b"f\xfcr")
        self.assertIn("iconv", self.run_it(latin, code=2))
        self.assertIn("can't read", self.run_it(os.path.join(self.dir, "none.txt"), code=2))
        self.assertIn("neither tokenizer.json", self.run_it(self.text, "--tokenizer", self.dir, code=2))
        self.assertIn("leave it out", self.run_it(self.text, "--tokenizer", self.dir, "--vocabulary", "300", code=2))
        os.mkdir(self.out)
        self.write(os.path.join(self.out, "train_000007.bin"), "old")
        self.assertIn("--force", self.run_it(self.text, "--vocabulary", "300", code=2))
        self.run_it(self.text, "--vocabulary", "300", "--force")
        self.assertFalse(os.path.exists(os.path.join(self.out, "train_000007.bin")))


if __name__ == "__main__":
    unittest.main()
