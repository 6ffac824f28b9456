"""Writes the held-out questions, and checks that nothing in them was reachable in training.

Usage: python3 make_eval.py --out ../../models/hadal-tiny/eval          writes the files
       python3 make_eval.py --check ../../models/hadal-tiny/eval        checks the files that are there
The check makes the questions again and compares them with the files, collects every key (operand pair, name, code,
sentence skeleton) they use, collects the keys of fresh training documents, and reports what both have in common.
"""
import argparse
import json
import pathlib
import random

import corpus
from heldout import Split, is_held_out

QUESTIONS = 320


def make(task: str, split) -> list[dict]:
    rows, seen = [], set()
    while len(rows) < QUESTIONS:
        e = corpus.TASKS[task][1](split)
        if (e.user, e.answer) in seen:
            continue
        seen.add((e.user, e.answer))
        rows.append({"task": e.task, "messages": e.messages(), "thinking": e.thought is not None, "answer": e.answer,
                     "compare": e.compare})
    return rows


def render(rows) -> str:
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--out", type=pathlib.Path)
    group.add_argument("--check", type=pathlib.Path)
    parser.add_argument("--training-documents", type=int, default=200000)
    args = parser.parse_args()
    folder = args.out or args.check
    folder.mkdir(parents=True, exist_ok=True)
    held = Split(random.Random(20_000_003), held_out=True, record=True)
    for task in corpus.EVAL_TASKS:
        text = render(make(task, held))
        file = folder / f"{task}.jsonl"
        if args.out:
            file.write_text(text)
        elif file.read_text() != text:
            raise SystemExit(f"{file} differs from the output of this script")
    if args.check:
        train = Split(random.Random(77), held_out=False, record=True)
        for _ in range(args.training_documents):
            corpus.document(train)
        for kind in sorted({k for k, _ in held.seen}):
            ours = {key for k, key in held.seen if k == kind}
            theirs = {key for k, key in train.seen if k == kind}
            wrong = [key for key in ours if not is_held_out(kind, key)]
            print(f"{kind}: {len(ours)} held-out keys, {len(theirs)} training keys, {len(ours & theirs)} in common")
            if ours & theirs or wrong:
                raise SystemExit(f"the split leaks: {sorted(ours & theirs)[:5] + wrong[:5]}")


if __name__ == "__main__":
    main()
