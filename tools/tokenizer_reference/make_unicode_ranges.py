"""Writes src/text/unicode_ranges.inc: the character classes that pre-tokenizers split on, as code point ranges.

The classes are probed from the reference library, so that they have its Unicode version whatever regex library this
project is built against: L M P S N and white space from its regex engine, numerics from its Digits pre-tokenizer, and word
characters from its Whitespace pre-tokenizer.

    pip install tokenizers==0.23.3
    python tools/tokenizer_reference/make_unicode_ranges.py > src/text/unicode_ranges.inc
"""

import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, Split, Whitespace

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CODE_POINTS))


def regex_class(pattern):
    """Returns the code points that a one-character pattern matches: all except those in the remaining pieces."""
    matched = bytearray(b"\1") * 0x110000
    for _, (begin, end) in Split(Regex(pattern), "removed").pre_tokenize_str(TEXT):
        for c in CODE_POINTS[begin:end]:
            matched[c] = 0
    return matched


def piecewise(pre_tokenizer, isolated):
    """Returns code points c for which "aca" is split (isolated) or stays one piece (not isolated)."""
    matched = bytearray(0x110000)
    for first in range(0, len(CODE_POINTS), 4096):
        chunk = CODE_POINTS[first : first + 4096]
        text = "".join("a" + chr(c) for c in chunk) + "a"
        cuts = set()
        for _, (begin, end) in pre_tokenizer.pre_tokenize_str(text):
            cuts.add(begin)
            cuts.add(end)
        for i, c in enumerate(chunk):
            apart = 2 * i + 1 in cuts and 2 * i + 2 in cuts
            matched[c] = apart == isolated
    return matched


def ranges(value_of):
    begin = 0
    for c in range(1, 0x110001):
        if c == 0x110000 or value_of(c) != value_of(begin):
            if value_of(begin):
                yield begin, c - 1, value_of(begin)
            begin = c


def main():
    names = [("L", r"\p{L}"), ("M", r"\p{M}"), ("N", r"\p{N}"), ("P", r"\p{P}"), ("S", r"\p{S}"), ("W", r"\s")]
    classes = [("k" + {"L": "Letter", "M": "Mark", "N": "Number", "P": "Punctuation", "S": "Symbol", "W": "Space"}[n],
                regex_class(p)) for n, p in names]
    classes.append(("kNumeric", piecewise(Digits(individual_digits=True), True)))
    classes.append(("kWord", piecewise(Whitespace(), False)))
    for surrogate in range(0xD800, 0xE000):
        for _, table in classes:
            table[surrogate] = 0

    def bits(c):
        return sum(1 << i for i, (_, table) in enumerate(classes) if table[c])

    print(f"// Written by tools/tokenizer_reference/make_unicode_ranges.py from tokenizers {tokenizers.__version__}.")
    print("// {first, last, bits}, bits: " + ", ".join(f"{1 << i} {name}" for i, (name, _) in enumerate(classes)))
    line = ""
    for first, last, value in ranges(bits):
        item = f"{{{first:#x}, {last:#x}, {value}}}, "
        if len(line) + len(item) > 110:
            print(line.rstrip())
            line = ""
        line += item
    print(line.rstrip())


if __name__ == "__main__":
    main()
