#!/usr/bin/env python3
"""The tokens that isthmus-generate makes of texts, against the tokenizers package of Hugging Face.

  check_tokens.py DUMP_TOKENS

Exit code 77: the tokenizers package is not installed (tests/requirements.txt).
"""
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import tokenizers
except ImportError:
    print("the tokenizers package is not installed (tests/requirements.txt)")
    sys.exit(77)
from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: E402

SEED = 9
CORPUS = ["In the beginning God created the heaven and the earth.", "It's 12345 o'clock; they'll say we've won!",
          "Die Straße führt über die Brücke, naïve façade.", "Привет, мир! 你好，世界。 こんにちは", "def f(x):\n    return x ** 2  # done\n",
          "<|endoftext|>"] * 20
TEXTS = ["", " ", "   ", "a", "hello world", "  two blanks", "end  ", "\n\n\nlines\n \n", "tab\there", "it's they'll WE'VE 'x",
         "12 345 6.78e9 ½ ² Ⅻ ٣", "Ünïcödé ﬁ e\u0301", "你好 世界", "emoji 🙂👩‍🚀 done", "\u00a0nbsp\u2003em\u3000wide", "\u200bzero\u0085next",
         "x<|endoftext|>y", "<|endoftext|><|endoftext|>", "<|endof", "\x00\x01\x7f", "don''t", "--==!! a?", "\u2028line\u2029"]


def random_texts(count):
    source = random.Random(SEED)
    letters = "ab  \n\t'st1٣é你🙂-!\u00a0\u2003lvredm"
    return ["".join(source.choice(letters) for _ in range(source.randint(1, 40))) for _ in range(count)]


def trained():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def compare(program, folder, tokenizer, texts):
    run = subprocess.run([program, folder, str(tokenizer.get_vocab_size())], input=json.dumps(texts), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for text, (ids, data) in zip(texts, json.loads(run.stdout)):
        theirs = tokenizer.encode(text).ids
        assert ids == theirs, f"{text!r}: {ids} against {theirs} (seed {SEED})"
        assert bytes(data).decode() == text, f"{text!r}: decodes to {bytes(data)!r}"


def main():
    texts = TEXTS + random_texts(2000)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = trained()
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        compare(sys.argv[1], folder, tokenizer, texts)
    with tempfile.TemporaryDirectory() as folder:  # the older pair of files
        tokenizer.model.save(folder)
        compare(sys.argv[1], folder, tokenizer, texts)
    print(f"{2 * len(texts)} texts have the tokens that tokenizers {tokenizers.__version__} gives them")


if __name__ == "__main__":
    main()
