"""Holds what the GPU's end-to-end checks share: running the binary, reading logits and counting. It uses only Python's
standard library. HADAL_TEST_DEVICE=cpu runs them without a GPU and compares the CPU with itself, which tests the checks,
not the engine. HADAL_GPU_FLAGS="--tp-size 2" adds flags to every run on a GPU, so that the same checks hold for ranks on
several GPUs."""
import array
import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HADAL = pathlib.Path(os.environ.get("HADAL_BINARY", ROOT / "build/cuda-release/hadal"))
MAKE_CHECKPOINT = HADAL.parent / "make_checkpoint"
GOLDENS = ROOT / "tests/model/goldens"
TINY = ROOT / "models/hadal-tiny"
DEVICE = os.environ.get("HADAL_TEST_DEVICE", "cuda")
# Several processes share the GPU, so none may use all of its memory for its cache.
GPU = ("--device", DEVICE, *os.environ.get("HADAL_GPU_FLAGS", "").split())
SMALL_CACHE = ("--max-total-tokens", 8192)
MAX_RELATIVE_ERROR = 3e-2
# Tokens after a close call cannot be compared, and a fault that moved all of them would go unnoticed. On one H200
# all tokens are equal.
MIN_EQUAL_SHARE = 0.8
GAP_FACTOR = 10  # greedy tokens must agree where the two best logits are further apart than this many times the error


def num_gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def run(*command, timeout=600):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))[:300]}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def ids_text(ids):
    return ",".join(map(str, ids))


def read_f32(path, name="logits"):
    """Returns (shape, values) of one F32 tensor of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    header_end = 8 + int.from_bytes(data[:8], "little")
    tensor = json.loads(data[8:header_end])[name]
    assert tensor["dtype"] == "F32", tensor
    begin, end = tensor["data_offsets"]
    values = array.array("f", data[header_end + begin:header_end + end])
    if sys.byteorder == "big":
        values.byteswap()
    return tensor["shape"], values


class LogitError:
    """Holds the error of logits [tokens, vocab] against a reference. A token is far off when its error is more than three
    times the bound, which happens when a close call sends it to other experts; `relative` is the error over the other
    tokens."""

    def __init__(self, out, reference, bound):
        shape, values = reference
        assert out[0] == shape, (out[0], shape)
        num_tokens, vocab = shape
        squares = []
        for t in range(num_tokens):
            row, expected = out[1][t * vocab:(t + 1) * vocab], values[t * vocab:(t + 1) * vocab]
            difference = math.fsum((a - b) ** 2 for a, b in zip(row, expected))
            assert math.isfinite(difference), f"token {t}: the logits contain NaN or infinity"
            squares.append((difference, math.fsum(b * b for b in expected)))
        errors = [math.sqrt(d / n) for d, n in squares]
        near = [pair for pair, error in zip(squares, errors) if error <= 3 * bound]
        self.relative = math.sqrt(sum(d for d, _ in near) / sum(n for _, n in near)) if near else math.inf
        self.all = math.sqrt(sum(d for d, _ in squares) / sum(n for _, n in squares))
        self.far_share = 1 - len(near) / num_tokens
        self.rms = math.sqrt(sum(d for d, _ in squares) / (num_tokens * vocab))

    def __str__(self):
        return f"relative error {self.relative:.2e} (all tokens {self.all:.2e}, {self.far_share:.1%} far off)"


def generate(checkpoint, ids, *flags):
    """Returns the parsed answer of `hadal generate --json` with the two best alternatives per token."""
    return json.loads(run(HADAL, "generate", "--model-path", checkpoint, "--input-ids", ids_text(ids), "--json",
                          "--logprobs", "--top-logprobs", 2, *flags))


def compare_greedy(expected, got, error):
    """Returns (number of equal tokens, why the rest does not count, or None). Raises if a difference has no
    excuse."""
    for at, (one, other) in enumerate(zip(expected["output_ids"], got["output_ids"])):
        if one == other:
            continue
        best, second = expected["output_top_logprobs"][at][:2]
        gap = best[0] - second[0]
        assert gap <= GAP_FACTOR * error, (f"token {at} is {other}, not {one}, though the two best are {gap:.3f} apart "
                                           f"and logits are off by {error:.4f}")
        return at, f"token {at}: a gap of {gap:.4f}, logits off by {error:.4f}"
    assert len(expected["output_ids"]) == len(got["output_ids"])
    return len(expected["output_ids"]), None


def check_equal_share(equal, total):
    """Checks that enough greedy tokens of all cases are equal."""
    assert equal >= MIN_EQUAL_SHARE * total, f"only {equal} of {total} greedy tokens are equal"
    return f"{equal} of {total} greedy tokens equal"


def main(checks, workers=6, after=()):
    """Runs [(name, call)], and those of `after` when the others have ended. A call returns what to print, or
    raises."""
    verbose = "--verbose" in sys.argv[1:]

    def attempt(check):
        try:
            return True, check[0], check[1]()
        except Exception as error:  # one failed check must not hide the others
            return False, check[0], f"{type(error).__name__}: {error}"

    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for ok, name, detail in itertools.chain(pool.map(attempt, checks), map(attempt, after)):
            passed, failed = passed + ok, failed + (not ok)
            if verbose or not ok or detail:
                print(f"{'ok  ' if ok else 'FAIL'} {name}: {detail}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0
