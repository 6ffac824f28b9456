"""Trains the byte-level BPE tokenizer and writes tokenizer.json, tokenizer_config.json and generation_config.json.

Usage: python3 make_tokenizer.py --out ../../models/hadal-tiny

Digits never merge with digits and capital letters never merge with what stands before them: a number is always a row
of single digits, a code such as KQX a row of single letters, and a name is cut the same way wherever it stands. The
training text is prepared so that such pairs do not occur in it.
"""
import argparse
import json
import pathlib
import random
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import corpus
import words
from chat_format import BOS, EOS, HEAD_TOKENS, PAD, TAIL_TOKENS
from heldout import Split

VOCAB_SIZE = 4096
SPLITS = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
          r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
          r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""]
_TEMPLATE = pathlib.Path(__file__).with_name("chat_template.jinja")


def training_text(num_documents: int, seed: int):
    split = Split(random.Random(seed), held_out=False, plain_names=True)
    special = re.compile("|".join(re.escape(t) for t in HEAD_TOKENS + TAIL_TOKENS))
    for _ in range(num_documents):
        text = special.sub("\n", "".join(t for t, _ in corpus.document(split)))
        text = re.sub(r"[0-9]+", "7", text)
        text = re.sub(r"[A-Z]{2,}", "", text)
        yield re.sub(r"(?<=[^\sA-Za-z])(?=[A-Za-z])|(?<= )(?=[A-Z])", "\n", text)
    for _ in range(max(1, num_documents // 5000)):
        yield "\n".join(words.syllables())


def build(num_documents: int = 40000, seed: int = 1) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in SPLITS] +
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE - len(TAIL_TOKENS), special_tokens=HEAD_TOKENS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(training_text(num_documents, seed), trainer)
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in TAIL_TOKENS])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B",
                                                             special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"the vocabulary has {tokenizer.get_vocab_size()} entries, but {VOCAB_SIZE} are needed: add more text")
    return tokenizer


def write(tokenizer: Tokenizer, out: pathlib.Path):
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    added = lambda t: {"__type": "AddedToken", "content": t, "lstrip": False, "normalized": False, "rstrip": False,
                       "single_word": False}
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": added(BOS), "clean_up_tokenization_spaces": False,
              "eos_token": added(EOS), "legacy": True, "model_max_length": 4096, "pad_token": added(PAD), "sp_model_kwargs": {},
              "unk_token": None, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _TEMPLATE.read_text()}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    generation = {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 0.6,
                  "top_p": 0.95}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--documents", type=int, default=40000)
    args = parser.parse_args()
    write(build(args.documents), args.out)
