"""Scores an exported checkpoint on models/hadal-tiny/eval/*.jsonl by exact match.

Usage: python3 evaluate.py --model DIR [--device cuda] [--limit N] [--out scores.json]
"""
import argparse
import json
import pathlib
import time

import torch
from tokenizers import Tokenizer

import chat_format
import export
from decode import Decoder
from model import Config

MAX_NEW = 400


def load_questions(folder: pathlib.Path, limit: int | None = None) -> list[dict]:
    questions = []
    for file in sorted(folder.glob("*.jsonl")):
        lines = file.read_text().splitlines()
        questions += [json.loads(line) for line in lines[:limit]]
    return questions


def visible_answer(text: str) -> str:
    """Returns the text that is scored: the part after </think>, without outer white space."""
    return text.rsplit(chat_format.END_THINK, 1)[-1].strip()


def is_correct(question: dict, text: str) -> bool:
    answer = visible_answer(text)
    if question["compare"] != "json":
        return answer == question["answer"]
    try:
        return json.loads(answer) == json.loads(question["answer"])
    except ValueError:
        return False


def score(decoder: Decoder, tokenizer: Tokenizer, questions: list[dict], keep_errors: int = 0, budget: int = 3_000_000):
    """Returns {task: {"correct", "total"}} and up to keep_errors (question, text) pairs per task; rows share batches by
    length."""
    prompts = [tokenizer.encode(chat_format.prompt(q["messages"], q["thinking"]), add_special_tokens=False).ids for q in questions]
    order = sorted(range(len(questions)), key=lambda i: len(prompts[i]))
    table, errors = {}, []
    while order:
        batch = []
        while order and (not batch or (len(batch) + 1) * (len(prompts[order[0]]) + MAX_NEW) <= budget):
            batch.append(order.pop(0))
        outputs = decoder.generate([prompts[i] for i in batch], MAX_NEW, eos=1)
        for i, text in zip(batch, tokenizer.decode_batch(outputs, skip_special_tokens=True)):
            q = questions[i]
            row = table.setdefault(q["task"], {"correct": 0, "total": 0})
            row["total"] += 1
            row["correct"] += is_correct(q, text)
            if not is_correct(q, text) and sum(e[0]["task"] == q["task"] for e in errors) < keep_errors:
                errors.append((q, text))
    return dict(sorted(table.items())), errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, help="folder of .jsonl files (default: MODEL/eval)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int, help="questions per task")
    parser.add_argument("--out", type=pathlib.Path, help="write the scores here as JSON")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    cfg = Config(args.model / "config.json")
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    weights = export.load_dequantised(args.model)
    questions = load_questions(args.data or args.model / "eval", args.limit)
    scores = {"method": "greedy; FP8 weights dequantised exactly, float32 arithmetic; KV rows rounded as named"}
    for kv in ("bfloat16", "float32"):
        started = time.time()
        scores[f"kv_{kv}"], errors = score(Decoder(weights, cfg, args.device, kv), tokenizer, questions, keep_errors=3)
        print(f"kv {kv}: {time.time() - started:.1f} s")
        for task, row in scores[f"kv_{kv}"].items():
            print(f"  {task:16s} {row['correct']:4d} / {row['total']:4d}  {100 * row['correct'] / row['total']:.1f} %")
    for q, text in errors:
        print("wrong:", q["task"], repr(q["messages"][-1]["content"][-160:]), "\n  got ", repr(text[-500:]), "\n  want", repr(q["answer"]))
    if args.out:
        kept = json.loads(args.out.read_text()) if args.out.exists() else {}
        args.out.write_text(json.dumps({**kept, **scores}, indent=1) + "\n")


if __name__ == "__main__":
    main()
