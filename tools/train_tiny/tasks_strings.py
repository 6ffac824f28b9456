"""Makes tasks that look up a value in a long list, or sort, count and copy strings."""
from chat_format import BOS, Example, ASSISTANT, END_THINK, EOS, THINK, USER
from words import CAPITALS, COLOURS, COMMON, THINGS, code, synthetic_name

_LOOKUP_HEADS = ["Here is a list:", "This is a list of values:", "Read this list:", "The list:", "Here is a table:",
                 "Remember these entries:"]
_LOOKUP_ASKS = ["What is the value of {k}?", "What value does {k} have?", "Find {k} in the list.", "Look up {k}.",
                "Which value belongs to {k}?", "What stands beside {k}?"]


def _entries(split, count: int):
    rng = split.rng
    make_key = (lambda: code(split, 3, 5)) if rng.random() < 0.55 or split.plain_names else (lambda: synthetic_name(split))
    kind = rng.choice(("number", "number", "code", "colour"))
    table = {}
    while len(table) < count:
        if kind == "number":
            value = str(rng.randint(10, 99999))
        elif kind == "code":
            value = "".join(rng.choices(CAPITALS, k=rng.randint(3, 5)))
        else:
            value = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"
        table[make_key()] = value
    return table


def _lookup_prompt(split, table, key):
    rng = split.rng
    head = rng.choice(_LOOKUP_HEADS)
    ask = rng.choice(_LOOKUP_ASKS).format(k=key)
    body = "\n".join(f"{k}: {v}" for k, v in table.items())
    return f"{head}\n{body}\n\n{ask}"


def lookup(split) -> Example:
    """Returns one question about a list of 60 to 150 entries (on the training side also shorter lists)."""
    rng = split.rng
    table = _entries(split, rng.randint(60, 150) if split.held_out else rng.choice((5, 10, 20, 40, 60, 90, 120, 150)))
    key = rng.choice(list(table))
    return Example("lookup", _lookup_prompt(split, table, key), table[key], thought=f"{key}: {table[key]}")


def lookup_series(split):
    """Returns a training document: one list and many questions, so that a long list earns many target tokens."""
    rng = split.rng
    table = _entries(split, rng.choice((4, 8, 16, 24, 32, 48, 64, 90, 120, 150)))
    keys = rng.sample(list(table), min(len(table), rng.randint(6, 16)))
    segments = []
    for i, key in enumerate(keys):
        ask = _lookup_prompt(split, table, key) if i == 0 else rng.choice(_LOOKUP_ASKS).format(k=key)
        think = rng.random() < 0.85
        segments.append(((BOS if i == 0 else "") + USER + ask + ASSISTANT + (THINK if think else END_THINK), False))
        segments.append(((f"{key}: {table[key]}{END_THINK}" if think else "") + table[key] + EOS, True))
    return segments


# --- sorting: walk the alphabet, collect the strings of each first letter, order those that share it -------------------

_SORT_ASKS = ["Sort these strings:", "Put these strings in alphabetical order:", "Sort alphabetically:",
              "Sort the following codes:", "Order these strings from A to Z:", "Please sort these codes:"]


def sort_thought(strings: list[str]) -> str:
    """Writes one line per letter: `C:CQX:CAB=CAB=CQX` lists C's strings in the given order, then sorted; a lone string needs no
    `=`."""
    lines = []
    for letter in CAPITALS:
        group = [s for s in strings if s[0].upper() == letter]
        line = letter + "".join(":" + s for s in group)
        if len(group) > 1:
            line += "".join("=" + s for s in sorted(group))
        lines.append(line)
    return "\n".join(lines)


def sorting(split) -> Example:
    rng = split.rng
    count = rng.randint(8, 12) if split.held_out else rng.choice((2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 12))
    kind = "code" if split.held_out else rng.choice(("code", "code", "code", "code", "name", "word"))
    strings = set()
    while len(strings) < count:
        if kind == "code":
            word = code(split, 2, 5)
        else:
            word = synthetic_name(split) if kind == "name" else rng.choice(COMMON)
        # Shared beginnings are rare by chance.
        if kind == "code" and not split.held_out and strings and rng.random() < 0.15:
            base = rng.choice(sorted(strings))
            word = split.draw("code", lambda: base[: rng.randint(1, 2)] + "".join(rng.choices(CAPITALS, k=rng.randint(1, 3))))
        strings.add(word)
    strings = sorted(strings)
    rng.shuffle(strings)
    ask = rng.choice(_SORT_ASKS)
    if rng.random() < 0.25:  # on one line
        return Example("sort", f"{ask} {', '.join(strings)}", ", ".join(sorted(strings)), thought=sort_thought(strings))
    return Example("sort", ask + "\n" + "\n".join(strings), "\n".join(sorted(strings)), thought=sort_thought(strings))


# --- counting: copy the string out and write the running count after every letter ------------------------------------

_COUNT_ASKS = ["How many times does {c} occur in {s}?", "How often does {c} appear in {s}?", "Count the letter {c} in {s}.",
               "Count how many {c} are in {s}.", "How many {c} are there in {s}?"]
_LIST_COUNT_ASKS = ["How many times does {c} occur in this list?", "Count {c} in this list:", "How often is {c} in this list?",
                    "Count how many {c} are in this list:"]


def counting(split) -> Example:
    rng = split.rng
    if rng.random() < 0.6:
        def make():
            letters = rng.sample(CAPITALS, rng.randint(2, 5))
            return "".join(rng.choices(letters, k=rng.randint(8, 16) if split.held_out else rng.randint(3, 18)))
        text = split.draw("code", make) if split.held_out or rng.random() < 0.85 else rng.choice(COMMON)
        letter = rng.choice(text) if rng.random() < 0.95 else rng.choice(CAPITALS if text[0].isupper() else CAPITALS.lower())
        count, steps = 0, []
        for c in text:
            count += c == letter
            steps.append(f"{c}{count}")
        return Example("count", rng.choice(_COUNT_ASKS).format(c=letter, s=text), str(count), thought="".join(steps))
    codes = sorted({code(split, 2, 3) for _ in range(rng.randint(2, 5))})
    items = rng.choices(codes, k=rng.randint(8, 14) if split.held_out else rng.randint(3, 15))
    target = rng.choice(items)
    count, steps = 0, []
    for item in items:
        count += item == target
        steps.append(f"{item} {count}")
    return Example("count", rng.choice(_LIST_COUNT_ASKS).format(c=target) + "\n" + "\n".join(items), str(count),
                   thought="\n".join(steps))


# --- copying ---------------------------------------------------------------------------------------------------------

_COPY_ASKS = ["Repeat exactly: {s}", "Copy this: {s}", "Say this again: {s}", "Write this once more: {s}", "Repeat: {s}"]
_TWICE_ASKS = ["Write this twice: {s}", "Repeat this two times: {s}", "Copy this twice: {s}"]


def copying(split) -> Example:
    rng = split.rng
    count = rng.randint(3, 8) if split.held_out else rng.randint(1, 9)
    parts = []
    for _ in range(count):
        kind = rng.random()
        parts.append(code(split, 2, 8) if kind < 0.5 else synthetic_name(split) if kind < 0.75
                     else split.draw("copy number", lambda: str(rng.randint(0, 999999))))
    text = " ".join(parts)
    if rng.random() < 0.2:
        return Example("copy", rng.choice(_TWICE_ASKS).format(s=text), f"{text}\n{text}")
    return Example("copy", rng.choice(_COPY_ASKS).format(s=text), text)
