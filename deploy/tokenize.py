#!/usr/bin/env python3
"""Turns text into shards of tokens that Isthmus trains on, with the tokenizers package of Hugging Face (pip install tokenizers).

  deploy/tokenize.py TEXT... --out DIR [--tokenizer DIR | --vocabulary N] [--validation SHARE] [--shard-tokens N] [--force]

  TEXT              UTF-8 files, a document each
  --out DIR         gets train.bin (or train_000000.bin, ...), val.bin with --validation, and tokenizer/
  --tokenizer DIR   use the tokenizer there: tokenizer.json, or GPT-2's vocab.json and merges.txt
  --vocabulary N    else train one of N tokens on the texts [8192]
  --validation S    share of the tokens, the last ones, that val.bin gets [0: the job's data.validation_share holds some back]
  --shard-tokens N  most tokens of a shard [100000000]
  --force           write over what DIR holds

Shards are uint16, little endian, with the header of llm.c (256 int32: 20240520, 1, the number of tokens). Each document ends
with <|endoftext|> where the tokenizer has it. DIR/tokenizer goes with the model: isthmus export JOB MODEL --tokenizer DIR/tokenizer
"""
import os
import sys

# This folder must not be searched for modules: this file is called as one of the standard library.
sys.path = [p for p in sys.path if os.path.realpath(p or ".") != os.path.dirname(os.path.realpath(__file__))]

import argparse  # noqa: E402
import array  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402

MAGIC, VERSION, HEADER_INTS = 20240520, 1, 256
MOST_TOKENS = 65536  # what uint16 holds
LEAST_TOKENS = 257   # the bytes and the end of a text
BLOCK_CHARACTERS = 1 << 20
END = "<|endoftext|>"


def die(message):
    """Ends the program as one that was used wrongly."""
    print(f"tokenize.py: {message}", file=sys.stderr)
    sys.exit(2)


def pieces(path):
    """The text of a file in pieces that are encoded as the whole would be: cut before a blank that follows no blank."""
    rest = ""
    try:
        with open(path, encoding="utf-8", newline="") as f:
            while block := f.read(BLOCK_CHARACTERS):
                rest += block
                cut = rest.rfind("\n")
                while cut > 0 and rest[cut - 1].isspace():
                    cut = rest.rfind("\n", 0, cut)
                if cut > 0:
                    yield rest[:cut]
                    rest = rest[cut:]
    except UnicodeDecodeError as error:
        die(f"{path} is not UTF-8 ({error.reason} within the {BLOCK_CHARACTERS} characters that were read last); "
            f"convert it: iconv -f latin1 -t utf-8 {path}")
    except OSError as error:
        die(f"can't read {path}: {error.strerror}")
    if rest:
        yield rest


def train(texts, size):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    if not LEAST_TOKENS <= size <= MOST_TOKENS:
        die(f"--vocabulary {size}: from {LEAST_TOKENS} (the bytes and {END}) to {MOST_TOKENS}, since tokens are stored as uint16")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], show_progress=sys.stderr.isatty(),
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator((piece for path in texts for piece in pieces(path)), trainer)
    return tokenizer


def read_tokenizer(folder):
    """The tokenizer of a folder, and the names of its files."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    names = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt"]
    there = [n for n in names if os.path.isfile(os.path.join(folder, n))]
    try:
        if "tokenizer.json" in there:
            return Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), there
        if "vocab.json" in there and "merges.txt" in there:
            built = Tokenizer(models.BPE.from_file(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")))
            built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            built.decoder = decoders.ByteLevel()
            if built.token_to_id(END) is not None:
                built.add_special_tokens([AddedToken(END, special=True)])
            return built, there
    except Exception as error:  # the package raises bare Exception
        die(f"the tokenizer in {folder} can't be read: {error}")
    die(f"{folder} has neither tokenizer.json nor vocab.json and merges.txt")


def size_of(tokenizer):
    return max(tokenizer.get_vocab().values()) + 1


def encode(tokenizer, texts):
    """The tokens of all texts, as an array of uint16."""
    tokens = array.array("H")
    end = tokenizer.token_to_id(END)
    for path in texts:
        for piece in pieces(path):
            tokens.extend(tokenizer.encode(piece, add_special_tokens=False).ids)
        if end is not None:
            tokens.append(end)
    return tokens


def write_shard(path, tokens):
    count = len(tokens)
    header = array.array("i", [MAGIC, VERSION, count] + [0] * (HEADER_INTS - 3))
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
        shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = os.path.join(folder, "tokenizer_config.json")
    if not os.path.exists(config):
        values = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        if tokenizer.token_to_id(END) is not None:
            values.update(bos_token=END, eos_token=END)
        with open(config, "w") as f:
            json.dump(values, f, indent=2)


def write_all(args, tokenizer, names, tokens):
    held_back = int(len(tokens) * args.validation)
    trained = len(tokens) - held_back
    if trained < 2 or (args.validation > 0 and held_back < 2):
        die(f"{len(tokens)} tokens are too few")
    os.makedirs(args.out, exist_ok=True)
    shards = range(0, trained, args.shard_tokens)
    for i, start in enumerate(shards):
        name = "train.bin" if len(shards) == 1 else f"train_{i:06d}.bin"
        write_shard(os.path.join(args.out, name), tokens[start:min(start + args.shard_tokens, trained)])
    if held_back:
        write_shard(os.path.join(args.out, "val.bin"), tokens[trained:])
    write_tokenizer(tokenizer, os.path.join(args.out, "tokenizer"), args.tokenizer, names)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokenizer")
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--validation", type=float, default=0)
    parser.add_argument("--shard-tokens", type=int, default=100_000_000)
    parser.add_argument("--force", action="store_true")
    args = parser.parse_args()
    if args.tokenizer and args.vocabulary:
        die("--vocabulary is for a tokenizer that is trained here; leave it out with --tokenizer")
    if not 0 <= args.validation < 1:
        die(f"--validation {args.validation}: a share from 0 to below 1")
    if args.shard_tokens < 2:
        die("--shard-tokens: at least 2")
    if os.path.isdir(args.out) and os.listdir(args.out) and not args.force:
        die(f"{args.out} is not empty: name another --out, or write over it with --force")
    return args


def main():
    args = parse()
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        die("the package tokenizers is not installed: python3 -m venv .venv && .venv/bin/pip install tokenizers, "
            "then .venv/bin/python deploy/tokenize.py ...")
    if args.tokenizer:
        tokenizer, names = read_tokenizer(args.tokenizer)
    else:
        tokenizer, names = train(args.texts, args.vocabulary or 8192), []
    size = size_of(tokenizer)
    if size > MOST_TOKENS:
        die(f"the tokenizer in {args.tokenizer} has {size} tokens, and Isthmus stores tokens as uint16: {MOST_TOKENS} at most. "
            "Take GPT-2's (50257), or leave --tokenizer out to train one")
    if args.force and os.path.isdir(args.out):
        for name in os.listdir(args.out):  # shards of an earlier run would be trained on as well
            if name == "val.bin" or (name.startswith("train") and name.endswith(".bin")):
                os.remove(os.path.join(args.out, name))
    write_all(args, tokenizer, names, encode(tokenizer, args.texts))
    name = os.path.basename(os.path.abspath(args.out))
    print(f"in the job file, with {name} below each daemon's --data-dir:\n"
          f"  model: {{vocabulary: {size}}}\n  data: {{path: {name}, format: tokens}}\n"
          f"with the model later: isthmus export JOB MODEL --tokenizer {os.path.join(args.out, 'tokenizer')}")


if __name__ == "__main__":
    main()
