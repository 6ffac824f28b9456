#!/usr/bin/env python3
"""Runs FlashMLA's own test of dense decoding on hadal.flash_mla under the name flash_mla, and reports our
errors and, with --peer, those of FlashMLA's own package.

    tests/cuda/flash_mla_own_test.py --file FLASHMLA/tests/test_flash_mla_dense_decoding.py [--peer DIR]
                                     [--dtype bf16|fp16] [--filter TEXT] [--keep N/OF]

FILE is the test of a FlashMLA checkout (written for commit 9241ae3); its cases that only measure time are left out. Every
other case runs as it stands, with its tolerances. In addition, the outputs are compared with float64: the error of a case is
the cosine difference between its outputs and those of float64, which are not rounded. DIR is a directory that holds
FlashMLA's own package flash_mla; with it the same inputs go to FlashMLA as well, and the test fails when our largest error
of a type is larger than FlashMLA's.

--keep 1/4 runs every fourth case, for a machine that is rented by the minute. It needs torch with CUDA and
the wheels of scripts/wheel (or HADAL_PYTHON_PATH, a directory that they are installed into). The last line is
"N passed, N failed".
"""
import argparse
import contextlib
import importlib.util
import io
import os
import sys
import types


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", required=True, help="FlashMLA's tests/test_flash_mla_dense_decoding.py")
    parser.add_argument("--peer", help="a directory with FlashMLA's own package flash_mla")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), help="only this type")
    parser.add_argument("--filter", default="", help="only the cases whose line holds this, for example 's_k=20, '")
    parser.add_argument("--keep", default="1/1", metavar="N/OF", help="only the N-th of every OF cases")
    options = parser.parse_args()
    if not os.path.isfile(options.file):
        parser.error(f"--file {options.file}: no such file; it is the test of a FlashMLA checkout")
    if options.peer and not os.path.isdir(os.path.join(options.peer, "flash_mla")):
        parser.error(f"--peer {options.peer}: there is no package flash_mla in it")
    try:
        options.kept, options.of = (int(number) for number in options.keep.split("/"))
        if not 1 <= options.kept <= options.of:
            raise ValueError
    except ValueError:
        parser.error(f"--keep {options.keep}: allowed are N/OF with 1 ≤ N ≤ OF, as in 1/4")
    return options


def imported_from(directory, name):
    """Returns the module of that name under `directory`, with all that it has imported; the name is free again afterwards."""
    sys.path.insert(0, directory)
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.remove(directory)
        for known in [key for key in sys.modules if key == name or key.startswith(name + ".")]:
            del sys.modules[known]
    return module


OPTIONS = parsed()
if os.environ.get("HADAL_PYTHON_PATH"):
    sys.path.insert(0, os.environ["HADAL_PYTHON_PATH"])
try:
    import torch
except ModuleNotFoundError:
    sys.exit("flash_mla_own_test.py needs torch")
if not torch.cuda.is_available():
    sys.exit("flash_mla_own_test.py needs a GPU, and torch finds none")
PEER = imported_from(os.path.abspath(OPTIONS.peer), "flash_mla") if OPTIONS.peer else None

import flash_mla  # noqa: E402  pylint: disable=wrong-import-position
import hadal.flash_mla  # noqa: E402  pylint: disable=wrong-import-position

if flash_mla.flash_mla_with_kvcache is not hadal.flash_mla.flash_mla_with_kvcache:
    sys.exit(f"flash_mla_own_test.py: flash_mla is {flash_mla.__file__}, not the alias of scripts/wheel")

if importlib.util.find_spec("triton") is None:  # kernelkit imports it for its timing cases, which do not run here
    sys.modules["triton"] = types.SimpleNamespace(jit=lambda function: function)


def own_test():
    """Returns FlashMLA's test as a module."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(OPTIONS.file)))
    spec = importlib.util.spec_from_file_location("flash_mla_dense_decoding", OPTIONS.file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks up its module there
    spec.loader.exec_module(module)
    return module


def exact(q, cache, table, lengths, causal):
    """Returns the outputs in float64: [batch, s_q, h_q, 512]."""
    batch, s_q, h_q, dim = q.shape
    h_kv = cache.shape[2]
    out = torch.zeros(batch, s_q, h_q, 512, dtype=torch.float64)
    for s, length in enumerate(lengths.tolist()):
        if length == 0:
            continue
        pages = table[s, :(length + 63) // 64].long()
        keys = cache[pages].reshape(-1, h_kv, dim)[:length].to(torch.float64).transpose(0, 1)  # [h_kv, length, 576]
        rows = q[s].to(torch.float64).view(s_q, h_kv, -1, dim).permute(1, 2, 0, 3)  # [h_kv, group, s_q, 576]
        group = rows.shape[1]
        scores = (rows.reshape(h_kv, -1, dim) @ keys.transpose(1, 2)).view(h_kv, group, s_q, length) * dim**-0.5
        if causal and s_q > 1:
            seen = torch.arange(length)[None, :] < (length - s_q + 1 + torch.arange(s_q))[:, None]
            scores.masked_fill_(~seen, -torch.inf)
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        values = (weights.view(h_kv, -1, length) @ keys[..., :512]).view(h_kv, group, s_q, 512)
        out[s] = values.permute(2, 0, 1, 3).reshape(s_q, h_q, 512)
    return out


def cosine_difference(got, expected):
    got = got.to(torch.float64)
    size = (got * got + expected * expected).sum().item()
    return 0.0 if size < 1e-12 else 1 - 2 * (got * expected).sum().item() / size


class Errors:
    """Holds the largest error of one type, ours and FlashMLA's, and the case that has it."""

    def __init__(self):
        self.largest = {}

    def add(self, name, error, case):
        if not error <= self.largest.get(name, (-1.0, ""))[0]:  # a NaN is the largest
            self.largest[name] = (error, case)


def main():
    module = own_test()
    calls = []

    def recorded(*arguments, **named):
        result = flash_mla.flash_mla_with_kvcache(*arguments, **named)
        calls.append((arguments, named, result))
        return result

    module.flash_mla = types.SimpleNamespace(get_mla_metadata=flash_mla.get_mla_metadata, flash_mla_with_kvcache=recorded)
    run_case = module.test_flash_mla
    passed = failed = seen = 0
    errors = {}

    @torch.inference_mode()
    def measure(kind, case):
        (q, cache, table, lengths, *_), named, (ours, _) = calls[0]
        expected = exact(q, cache, table, lengths, named["causal"])
        largest = errors.setdefault(kind, Errors())
        largest.add("hadal", cosine_difference(ours, expected), case)
        if PEER:
            theirs, _ = PEER.flash_mla_with_kvcache(q, cache, table, lengths, 512, PEER.get_mla_metadata()[0], None,
                                                    causal=named["causal"])
            largest.add("FlashMLA", cosine_difference(theirs, expected), case)

    def test_case(parameters):
        nonlocal passed, failed, seen
        case = str(parameters)
        if parameters.test_performance or OPTIONS.filter not in case:
            return
        seen += 1
        if (seen - 1) % OPTIONS.of != OPTIONS.kept - 1:
            return
        kind = str(torch.get_default_dtype()).rsplit(".", maxsplit=1)[-1]
        calls.clear()
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                run_case(parameters)
            passed += 1
        except AssertionError:
            failed += 1
            print(f"FAILED {kind} {case}: " + " ".join(said.getvalue().split("\n")[2:])[:400], flush=True)
        measure(kind, case)

    module.test_flash_mla = test_case
    for name, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if OPTIONS.dtype in (None, name):
            module.main(kind)
    for kind, largest in errors.items():
        for name, (error, case) in largest.largest.items():
            print(f"{kind}: the largest error of {name} is {error:.4g}, of {case}")
        ours, theirs = (largest.largest.get(name, (0.0, ""))[0] for name in ("hadal", "FlashMLA"))
        if PEER and not ours <= theirs:
            failed += 1
            print(f"FAILED {kind}: our largest error is {ours / theirs:.3f} times FlashMLA's")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
