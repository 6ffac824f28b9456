#!/usr/bin/env python3
"""Measures the server's rows of bench/run_h200.sh: `hadal serve` with V2-Lite's dims under `hadal bench
serving` with random ids, at each concurrency; --load names the lengths of prompts and answers. With --start
it measures instead how long a full-size checkpoint and the bundled model take from start to ready (the second
start is reported, because the page cache is warm then)."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# A load has its results, tokens in and out, and how many prompts are sent at each concurrency.
LOADS = {"usual": ("serving.jsonl", 1024, 256, {1: 16, 16: 128, 64: 384, 128: 640}),
         "large": ("serving-large.jsonl", 256, 128, {256: 1536, 512: 3072, 1024: 6144})}
CHECKPOINT_BYTES = 31.5e9  # V2-Lite in bf16


def serve(serving, *flags, model):
    started = time.monotonic()
    server = serving.Server("--device", "cuda", *flags, model=model, ready_s=600)
    return server, time.monotonic() - started


def load(options, serving):
    file, num_in, num_out, prompts = LOADS[options.load]
    results = options.out / file
    results.unlink(missing_ok=True)
    server, ready_s = serve(serving, "--load-format", "dummy", "--skip-tokenizer-init", "--disable-radix-cache",
                            *options.serve_flags.split(), model=ROOT / "bench/configs/v2-lite")
    with server:
        print(f"ready after {ready_s:.1f} s", flush=True)
        for concurrency in options.concurrency or sorted(prompts):
            count = prompts.get(concurrency, 4 * concurrency)
            command = [options.hadal, "bench", "serving", "--backend", "sglang-native", "--base-url",
                       f"http://127.0.0.1:{server.port}", "--dataset-name", "random-ids", "--random-input-len", num_in,
                       "--random-output-len", num_out, "--random-range-ratio", 1, "--num-prompts", count,
                       "--max-concurrency", concurrency, "--warmup-requests", min(concurrency, 16), "--disable-tqdm",
                       "--tag", f"lite-bf16 {concurrency}", "--output-file", results]
            subprocess.run([str(word) for word in command], check=True)


def start(options, serving):
    directory = pathlib.Path(os.environ.get("HADAL_BENCH_DIR", "/dev/shm"))
    if not directory.is_dir():
        sys.exit(f"{directory} is no directory; HADAL_BENCH_DIR names where the checkpoint is written")
    place = directory / "hadal-bench-v2-lite"
    is_there = (place / "model.safetensors.index.json").is_file()
    free = shutil.disk_usage(directory).free
    if not is_there and free < CHECKPOINT_BYTES:
        sys.exit(f"the checkpoint needs {CHECKPOINT_BYTES / 2 ** 30:.1f} GiB, {directory} has {free / 2 ** 30:.1f} free; "
                 "HADAL_BENCH_DIR names another directory")
    make_checkpoint = options.hadal.parent / "make_checkpoint"
    if not is_there and not make_checkpoint.is_file():
        sys.exit(f"{make_checkpoint.parent} holds no make_checkpoint")
    rows = {}
    try:
        if not is_there:
            subprocess.run([str(make_checkpoint), "--preset", "v2-lite", "--output", str(place)],
                           check=True)
        for name, model, flags in (("V2-Lite, full size", place, ("--skip-tokenizer-init",)),
                                   ("hadal-tiny", serving.TINY, ())):
            for _ in range(2):
                server, seconds = serve(serving, *flags, model=model)
                with server:
                    rows[name] = seconds
            print(f"{name}: ready after {seconds:.2f} s", flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(place, ignore_errors=True)
    (options.out / "start.json").write_text(json.dumps(rows), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hadal", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--load", choices=LOADS, default="usual")
    parser.add_argument("--concurrency", type=int, nargs="+", help="default: all of the load's")
    parser.add_argument("--serve-flags", default="", help="further flags of hadal serve, in one argument (--serve-flags=\"--tp-size 2\")")
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the full-size checkpoint where it is")
    options = parser.parse_args()
    options.hadal = options.hadal.resolve()
    os.environ["HADAL_BINARY"] = str(options.hadal)
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import serving  # finds the binary when it is imported
    try:
        (start if options.start else load)(options, serving)
    except subprocess.CalledProcessError as error:  # the program has printed the reason
        sys.exit(f"{pathlib.Path(error.cmd[0]).name} ended with {error.returncode}")
    except RuntimeError as error:  # has the server's own message
        sys.exit(str(error))


if __name__ == "__main__":
    main()
