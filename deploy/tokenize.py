#!/usr/bin/env python3
"""Turns text into shards of tokens that Isthmus trains on, with the tokenizers package of Hugging Face
(python3 -m venv .venv && .venv/bin/pip install tokenizers, then .venv/bin/python deploy/tokenize.py).

  deploy/tokenize.py TEXT... --out DIR [--tokenizer DIR | --vocabulary N] [--validation SHARE] [--shard-tokens N] [--force]

  TEXT              UTF-8 files, a document each
  --out DIR         gets train.bin (or train_000000.bin, ...), val.bin with --validation, and tokenizer/
  --tokenizer DIR   use the tokenizer there: tokenizer.json, or GPT-2's vocab.json and merges.txt (or encoder.json and vocab.bpe, as
                    OpenAI named them)
  --vocabulary N    else train one of N tokens on the texts [8192]
  --validation S    share of the tokens, the last ones, that val.bin gets [0: the job's data.validation_share holds some back]
  --shard-tokens N  most tokens of a shard [100000000]
  --force           write over what DIR holds

Shards are uint16, or uint32 where the tokenizer has more than 65536 tokens, little endian, with the header of llm.c (256 int32:
20240520, 1, the number of tokens; for uint32 20240801, 7). Each document ends with <|endoftext|> where the tokenizer has it. DIR/tokenizer goes with the model: isthmus export JOB MODEL --tokenizer DIR/tokenizer
"""
import os
import sys

# This folder must not be searched for modules: this file is called as one of the standard library.
sys.path = [p for p in sys.path if os.path.realpath(p or ".") != os.path.dirname(os.path.realpath(__file__))]

import argparse  # noqa: E402
import array  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import stat  # noqa: E402

HEADER_INTS = 256
HEADERS = {2: (20240520, 1), 4: (20240801, 7)}  # by the bytes of a token: magic and version
MOST_NARROW = 65536     # what uint16 holds
MOST_TOKENS = 1 << 20   # of the vocabularies that Isthmus trains on
LEAST_TOKENS = 257   # the bytes and the end of a text
BLOCK_CHARACTERS = 1 << 20
LONGEST_WORD = 4 << 20  # characters without a place to cut them
MOST_SHARD_TOKENS = 2 ** 31 - 1  # the header counts in int32
MOST_SHARDS = 65536         # that Isthmus reads of a directory
END = "<|endoftext|>"
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))  # the names at Hugging Face, and at OpenAI
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")


def die(message):
    """Ends the program as one that was used wrongly."""
    print(f"tokenize.py: {message}", file=sys.stderr)
    sys.exit(2)


def cut_at(text, characters):
    """The last place before one of `characters` that follows no blank; 0: there is none."""
    cut = max(text.rfind(c) for c in characters)
    while cut > 0 and text[cut - 1].isspace():
        cut = max(text.rfind(c, 0, cut) for c in characters)
    return max(cut, 0)


def pieces(path):
    """The text of a file in pieces that are encoded as the whole would be: cut before a blank that follows no blank, at the end of
    a line where there is one."""
    rest = ""
    try:
        with open(path, encoding="utf-8", newline="") as f:
            while block := f.read(BLOCK_CHARACTERS):
                if "\0" in block:
                    die(f"{path} holds NUL characters: it is a binary file or UTF-16, which is converted by: iconv -f utf-16 -t utf-8 {path}")
                rest += block
                cut = cut_at(rest, "\n") or cut_at(rest, "\r\t ")
                if cut > 0:
                    yield rest[:cut]
                    rest = rest[cut:]
                elif len(rest) >= LONGEST_WORD:
                    die(f"{path} has {LONGEST_WORD} characters without a line end or blank behind a word, so it can't be read in pieces: "
                        "break it into lines")
    except UnicodeDecodeError as error:
        die(f"{path} is not UTF-8 ({error.reason} within the {BLOCK_CHARACTERS} characters that were read last): if it is a text, "
            f"convert it: iconv -f latin1 -t utf-8 {path}")
    except OSError as error:
        die(f"can't read {path}: {error.strerror}")
    if rest:
        yield rest


def train(texts, size):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], show_progress=sys.stderr.isatty(),
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator((piece for path in texts for piece in pieces(path)), trainer)
    return tokenizer


def read_tokenizer(folder):
    """The tokenizer of a folder, and the names of those of its files that go with a model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    there = [n for n in TOKENIZER_FILES if os.path.isfile(os.path.join(folder, n))]
    try:
        if "tokenizer.json" in there:
            return Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), there
        for pair in PAIRS:
            paths = [os.path.join(folder, n) for n in pair]
            if not all(os.path.isfile(p) for p in paths):
                continue
            built = Tokenizer(models.BPE.from_file(*paths))
            built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            built.decoder = decoders.ByteLevel()
            if built.token_to_id(END) is not None:
                built.add_special_tokens([AddedToken(END, special=True)])
            return built, there
    except Exception as error:  # the package raises bare Exception
        die(f"the tokenizer in {folder} can't be read: {error}")
    die(f"{folder} has neither tokenizer.json nor vocab.json and merges.txt nor encoder.json and vocab.bpe")


def size_of(tokenizer):
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def encode(tokenizer, texts):
    """The tokens of all texts, as an array of the width that the vocabulary needs."""
    tokens = array.array("H" if size_of(tokenizer) <= MOST_NARROW else "I")
    end = tokenizer.token_to_id(END)
    for path in texts:
        for piece in pieces(path):
            try:
                tokens.extend(tokenizer.encode(piece, add_special_tokens=False).ids)
            except Exception as error:  # the package raises bare Exception
                die(f"{path} can't be encoded with this tokenizer: {error}. Take another one, or leave --tokenizer out to train one")
        if end is not None:
            tokens.append(end)
    return tokens


def write_shard(path, tokens):
    count = len(tokens)
    header = array.array("i", [*HEADERS[tokens.itemsize], count] + [0] * (HEADER_INTS - 3))
    if sys.byteorder == "big":
        header.byteswap()
        tokens = tokens[:]
        tokens.byteswap()
    with open(path + ".part", "wb") as f:
        header.tofile(f)
        tokens.tofile(f)
    os.replace(path + ".part", path)
    print(f"{path}: {count} tokens")


def write_tokenizer(tokenizer, folder, source, names):
    os.makedirs(folder, exist_ok=True)
    for name in names:
        there, here = os.path.join(source, name), os.path.join(folder, name)
        if not (os.path.exists(here) and os.path.samefile(there, here)):  # a folder that was written here may be used again
            shutil.copyfile(there, here)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = os.path.join(folder, "tokenizer_config.json")
    if not os.path.exists(config):
        values = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        if tokenizer.token_to_id(END) is not None:
            values.update(bos_token=END, eos_token=END)
        with open(config, "w") as f:
            json.dump(values, f, indent=2)


def old_shards(folder):
    """Paths of the shards of an earlier run: they would be trained on as well."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, n) for n in names if n == "val.bin" or (n.startswith("train") and n.endswith(".bin"))]


def write_all(args, tokenizer, names, tokens):
    """Nothing in args.out is touched before all that can be refused has been."""
    held_back = int(len(tokens) * args.validation)
    trained = len(tokens) - held_back
    if trained < 2 or (args.validation > 0 and held_back < 2):
        die(f"{len(tokens)} tokens are too few: give more text, or leave --validation out")
    shards = range(0, trained, args.shard_tokens)
    if len(shards) > MOST_SHARDS:
        die(f"--shard-tokens {args.shard_tokens} would make {len(shards)} shards, and Isthmus reads {MOST_SHARDS} at most: give a larger one")
    if held_back > MOST_SHARD_TOKENS:
        die(f"--validation {args.validation} holds back {held_back} tokens, and val.bin holds {MOST_SHARD_TOKENS} at most: give a smaller share")
    os.makedirs(args.out, exist_ok=True)
    for path in old_shards(args.out):
        os.remove(path)
    for i, start in enumerate(shards):
        name = "train.bin" if len(shards) == 1 else f"train_{i:06d}.bin"
        write_shard(os.path.join(args.out, name), tokens[start:min(start + args.shard_tokens, trained)])
    if held_back:
        write_shard(os.path.join(args.out, "val.bin"), tokens[trained:])
    write_tokenizer(tokenizer, os.path.join(args.out, "tokenizer"), args.tokenizer, names)


def whole(text, name, least, most, why=""):
    if not re.fullmatch("[0-9]{1,18}", text) or not least <= int(text) <= most:
        die(f"{name} {text}: must be a whole number from {least} to {most}{why}")
    return int(text)


def check_text(path, out):
    """A text is read twice, so it has to be a file, and stays, so it may not be one that is written over."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        die(f"can't read {path}: {getattr(error, 'strerror', None) or error}")
    if not stat.S_ISREG(mode):
        die(f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'no regular file'}: name text files; what comes out of a pipe is written to one first")
    written = old_shards(out) + [os.path.join(out, "tokenizer", n) for n in TOKENIZER_FILES]
    if any(os.path.exists(w) and os.path.samefile(path, w) for w in written):
        die(f"the text {path} is one of the files in --out {out} that are written over: move it elsewhere or name another --out")


def check_out(args):
    if os.path.exists(args.out) and not os.path.isdir(args.out):
        die(f"--out {args.out} is a file: name a directory, it may be new")
    if os.path.isdir(args.out) and os.listdir(args.out) and not args.force:
        die(f"{args.out} is not empty: name another --out, or write over it with --force")
    tokenizer = os.path.join(args.out, "tokenizer")
    if os.path.exists(tokenizer) and not os.path.isdir(tokenizer):
        die(f"{tokenizer} is a file, and the tokenizer's files go into a directory of that name: move it or name another --out")
    for path in old_shards(args.out):
        if os.path.isdir(path):
            die(f"{path} is a directory, and a shard has that name: move it or name another --out")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokenizer")
    parser.add_argument("--vocabulary")
    parser.add_argument("--validation", type=float, default=0)
    parser.add_argument("--shard-tokens", default="100000000")
    parser.add_argument("--force", action="store_true")
    args = parser.parse_args()
    if args.tokenizer is not None and args.vocabulary is not None:
        die("--vocabulary is for a tokenizer that is trained here; leave it out with --tokenizer")
    args.vocabulary = whole("8192" if args.vocabulary is None else args.vocabulary, "--vocabulary", LEAST_TOKENS, MOST_TOKENS,
                            f" (the bytes and {END})")
    if not 0 <= args.validation < 1:
        die(f"--validation {args.validation}: a share from 0 to below 1")
    args.shard_tokens = whole(args.shard_tokens, "--shard-tokens", 2, MOST_SHARD_TOKENS)
    if args.tokenizer is not None and not os.path.isdir(args.tokenizer):
        die(f"--tokenizer {args.tokenizer} is no directory: name the one that tokenizer.json, or vocab.json and merges.txt, lie in")
    check_out(args)
    for path in args.texts:
        check_text(path, args.out)
    return args


def run():
    args = parse()
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        die("the package tokenizers is not installed: python3 -m venv .venv && .venv/bin/pip install tokenizers, "
            "then .venv/bin/python deploy/tokenize.py ...")
    if args.tokenizer is not None:
        tokenizer, names = read_tokenizer(args.tokenizer)
    else:
        tokenizer, names = train(args.texts, args.vocabulary), []
    size = size_of(tokenizer)
    if size == 0:
        die(f"the tokenizer in {args.tokenizer} has no tokens: take another one, or leave --tokenizer out to train one")
    if size > MOST_TOKENS:
        die(f"the tokenizer in {args.tokenizer} has ids up to {size - 1}, and Isthmus trains on vocabularies of {MOST_TOKENS} at most. "
            "Take GPT-2's (50257), or leave --tokenizer out to train one")
    write_all(args, tokenizer, names, encode(tokenizer, args.texts))
    name = os.path.basename(os.path.abspath(args.out))
    print(f"in the job file, with {name} below each daemon's --data-dir:\n"
          f"  model: {{vocabulary: {size}}}\n  data: {{path: {name}, format: tokens}}\n"
          f"with the model later: isthmus export JOB MODEL --tokenizer {os.path.join(args.out, 'tokenizer')}")


def main():
    try:
        run()
    except OSError as error:
        die(f"{error.filename or 'the output'}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
