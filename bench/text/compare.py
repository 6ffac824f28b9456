"""Measures tokenizer speed beside the reference library `tokenizers`, in one run, one thread each.

    python bench/text/compare.py [--binary build/cpu-release/bench/text/text_bench] [--text FILE]

The text is English prose by default: the documentation strings of this Python's standard library. It needs network access
once, as tests/text/reference_tokenizer_test.py does.
"""

import argparse
import ast
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/text"))
import reference_tokenizer_test as reference_test  # noqa: E402


def english_text(limit):
    parts = []
    size = 0
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (doc := ast.get_docstring(node)):
                parts.append(doc)
                size += len(doc)
        if size > limit:
            break
    return "\n\n".join(parts)[:limit]


def best_of(runs, work):
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu-release/bench/text/text_bench"))
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--cache", default=os.path.expanduser("~/.cache/hadal-tests"), type=pathlib.Path)
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    directories, reason = reference_test.fetch(args.cache)
    if directories is None:
        print(f"SKIP the reference library or its vocabularies could not be fetched: {reason}")
        return 0
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    text = args.text.read_text(encoding="utf-8") if args.text else english_text(2_000_000)
    size = len(text.encode())
    pieces = [text[i:i + 2000] for i in range(0, len(text), 2000)]
    print(f"{size / 1e6:.2f} MB of text, one thread, tokenizers {tokenizers.__version__}")
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode())
        file.flush()
        for name, directory in directories.items():
            rows = subprocess.run([args.binary, directory, file.name], check=True, capture_output=True, text=True).stdout
            ours = {row[0]: (float(row[1]), row[2]) for row in (line.split("\t") for line in rows.splitlines())}
            load = best_of(2, lambda: tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")))
            reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
            one = size / 1e6 / best_of(2, lambda: reference.encode(text, add_special_tokens=False))
            single = size / 1e6 / best_of(2, lambda: [reference.encode(p, add_special_tokens=False) for p in pieces])
            batch = size / 1e6 / best_of(2, lambda: reference.encode_batch(pieces, add_special_tokens=False))
            fast = size / 1e6 / best_of(2, lambda: reference.encode_batch_fast(pieces, add_special_tokens=False))
            print(f"\n{name}: bytes per token {ours['bytes per token'][0]:.2f}")
            line = "  {:36} {:>9.1f} {:5} reference {:>8.2f}  ratio {:>5.1f}"
            print(line.format("load", *ours["load"], load * 1e3, load * 1e3 / ours["load"][0]))
            for label, key, value in (("encode, one text", "encode, one text", one),
                                      ("encode, 2 kB texts (encode)", "encode, 2 kB texts", single),
                                      ("encode, 2 kB texts (encode_batch)", "encode, 2 kB texts", batch),
                                      ("encode, 2 kB texts (_batch_fast)", "encode, 2 kB texts", fast)):
                print(line.format(label, *ours[key], value, ours[key][0] / value))
            for key in ("decode", "detokenize token by token", "encode a 1 MB word, one letter", "encode a 1 MB word, random letters"):
                print("  {:36} {:>9.1f} {}".format(key, *ours[key]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
