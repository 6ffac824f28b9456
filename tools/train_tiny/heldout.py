"""Splits training from held-out material by one hash.

Every operand pair, name, code string and sentence skeleton is a text key of some kind. A key is held out when its
hash falls in one bucket of twenty. Training generators refuse held-out keys and evaluation generators refuse all
others, so no key occurs in both, whatever the seeds.
"""
import hashlib

NUM_BUCKETS = 20


def is_held_out(kind: str, key: str) -> bool:
    digest = hashlib.blake2b(f"{kind}\x00{key}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % NUM_BUCKETS == 0


class Split:
    """Draws keys of one side only and, on request, records them (for the disjointness check)."""

    def __init__(self, rng, held_out: bool, record: bool = False, plain_names: bool = False):
        self.rng = rng
        self.held_out = held_out
        self.plain_names = plain_names  # the tokenizer must not memorise made-up names
        self.seen = set() if record else None

    def allows(self, kind: str, key: str) -> bool:
        if is_held_out(kind, key) != self.held_out:
            return False
        if self.seen is not None:
            self.seen.add((kind, key))
        return True

    def draw(self, kind: str, make):
        """Calls make() until its result, or the first item of a tuple result, is a key of this side."""
        while True:
            value = make()
            key = value[0] if isinstance(value, tuple) else value
            if self.allows(kind, key):
                return value
