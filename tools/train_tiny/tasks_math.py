"""Makes arithmetic and word problems. The thought of each writes out every step.

Numbers in a thought carry place labels (a units, b tens, c hundreds, …), so that each step only looks up the digit
beside a label: `c4b2a7` is 427. Column steps are `a7+8+0=15` (label, two digits, carry in, two-digit sum) and
`a7*8+0=56` (digit, multiplier, carry in).
"""
from chat_format import Example
from words import CONTAINERS, THINGS, person

LABELS = "abcdefgh"


def labelled(value: int) -> str:
    text = str(value)
    return "".join(LABELS[len(text) - 1 - i] + d for i, d in enumerate(text))


def _labelled_digits(digits: list[int]) -> str:
    """Labels digits; digits[0] is the units digit, and leading zeros are dropped."""
    digits = list(digits)
    while len(digits) > 1 and digits[-1] == 0:
        digits.pop()
    return "".join(LABELS[i] + str(digits[i]) for i in reversed(range(len(digits))))


def _add_columns(x: int, y: int) -> list[str]:
    xs, ys = str(x)[::-1], str(y)[::-1]
    lines, carry, digits = [], 0, []
    for i in range(max(len(xs), len(ys))):
        dx = int(xs[i]) if i < len(xs) else 0
        dy = int(ys[i]) if i < len(ys) else 0
        total = dx + dy + carry
        lines.append(f"{LABELS[i]}{dx}+{dy}+{carry}={total // 10}{total % 10}")
        digits.append(total % 10)
        carry = total // 10
    digits.append(carry)
    lines.append(_labelled_digits(digits))
    return lines


def add_thought(x: int, y: int) -> str:
    return "\n".join([f"{labelled(x)}+{labelled(y)}"] + _add_columns(x, y))


def multiply_thought(x: int, y: int) -> str:
    lines = [f"{labelled(x)}*{labelled(y)}"]
    partials = []
    for shift, m in enumerate(int(d) for d in reversed(str(y))):
        carry, digits = 0, [0] * shift
        for i, d in enumerate(int(d) for d in reversed(str(x))):
            total = d * m + carry
            lines.append(f"{LABELS[i + shift]}{d}*{m}+{carry}={total // 10}{total % 10}")
            digits.append(total % 10)
            carry = total // 10
        digits.append(carry)
        lines.append(_labelled_digits(digits))
        partials.append(sum(d * 10**i for i, d in enumerate(digits)))
    if len(partials) == 2:
        lines += _add_columns(*partials)
    return "\n".join(lines)


_ADD_ASKS = ["{x}+{y}", "{x} + {y}", "What is {x} + {y}?", "Add {x} and {y}.", "Compute {x} + {y}.", "{x} plus {y}?",
             "What is {x} plus {y}?", "Calculate {x}+{y}.", "Please add {x} and {y}.", "What do {x} and {y} add up to?",
             "{x} + {y} = ?", "Find the sum of {x} and {y}.", "How much is {x} + {y}?"]
_MUL_ASKS = ["{x}*{y}", "{x} * {y}", "What is {x} * {y}?", "Multiply {x} by {y}.", "Compute {x} * {y}.", "{x} times {y}?",
             "What is {x} times {y}?", "Calculate {x}*{y}.", "Please multiply {x} by {y}.", "{x} * {y} = ?",
             "Find the product of {x} and {y}.", "How much is {x} times {y}?"]


def _number(rng, digits: int) -> int:
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def addition(split) -> Example:
    rng = split.rng

    def make():
        if split.held_out:
            x, y = _number(rng, rng.choice((3, 4, 5, 6, 6))), _number(rng, rng.choice((3, 4, 5, 6, 6)))
        else:
            x, y = _number(rng, rng.randint(1, 6)), _number(rng, rng.randint(1, 6))
            if rng.random() < 0.15:  # long carry chains are rare by chance
                x = int(str(x)[0] + "".join(str(9 - int(d)) for d in str(y)[1:])) if len(str(y)) > 1 else x
        return f"{min(x, y)}+{max(x, y)}", x, y

    _, x, y = split.draw("add", make)
    ask = rng.choice(_ADD_ASKS).format(x=x, y=y)
    if not split.held_out and max(x, y) < 100 and rng.random() < 0.5:
        return Example("addition", ask, str(x + y))
    return Example("addition", ask, str(x + y), thought=add_thought(x, y))


def subtraction(split) -> Example:
    """Makes subtractions with small differences, for training only: they also occur inside word problems."""
    rng = split.rng
    x = rng.randint(0, 150)
    y = rng.randint(0, x)
    ask = rng.choice(["{x}-{y}", "{x} - {y}", "What is {x} - {y}?", "What is {x} minus {y}?", "Compute {x} - {y}.",
                      "Subtract {y} from {x}.", "Take {y} away from {x}."]).format(x=x, y=y)
    return Example("subtraction", ask, str(x - y), thought=f"{x}-{y}={x - y}" if rng.random() < 0.5 else None)


def multiplication(split) -> Example:
    rng = split.rng

    def make():
        if split.held_out:
            x, y = rng.randint(100, 999), rng.randint(10, 99)
        else:
            x, y = _number(rng, rng.choice((1, 2, 3, 3, 3))), _number(rng, rng.choice((1, 2, 2, 2)))
        return f"{x}*{y}", x, y

    _, x, y = split.draw("mul", make)
    ask = rng.choice(_MUL_ASKS).format(x=x, y=y)
    if not split.held_out and max(x, y) < 10:
        return Example("multiplication", ask, str(x * y))
    return Example("multiplication", ask, str(x * y), thought=multiply_thought(x, y))


# --- two-step word problems: an opening fact, two events and a question, each with several wordings -------------------

_OPENINGS = ["{n} has {x} {t}.", "{n} owns {x} {t}.", "At first {n} has {x} {t}.", "{n} starts with {x} {t}.",
             "There are {x} {t} on {n}'s table.", "In the morning {n} has {x} {t}.", "{n} keeps {x} {t} in a drawer.",
             "{n} collected {x} {t}."]
_GAINS = ["{n} gets {y} more {t}.", "{n} buys {y} more {t}.", "A friend gives {n} {y} {t}.", "Then {n} finds {y} {t}.",
          "{m} brings {n} {y} more {t}.", "{n} wins {y} {t} in a game.", "Later {n} receives {y} {t}."]
_LOSSES = ["{n} gives {y} {t} to {m}.", "{n} loses {y} {t}.", "Then {n} sells {y} {t}.", "{n} gives away {y} {t}.",
           "{m} takes {y} {t}.", "Later {n} drops {y} {t} into the river.", "{n} leaves {y} {t} at school."]
_PACKS = ["{n} buys {p} {c} with {y} {t} each.", "Then {n} gets {p} {c} of {y} {t} each.",
          "{m} brings {n} {p} {c} with {y} {t} in each.", "Later {n} finds {p} {c}, each with {y} {t}.",
          "A friend gives {n} {p} {c} with {y} {t} each."]
_PACK_OPENINGS = ["{n} has {p} {c} with {x} {t} each.", "{n} owns {p} {c} of {x} {t} each.",
                  "There are {p} {c} on {n}'s table, each with {x} {t}.", "{n} fills {p} {c} with {x} {t} each."]
_QUESTIONS = ["How many {t} does {n} have now?", "How many {t} are there now?", "How many {t} does {n} have in the end?",
              "How many {t} does that make?", "What is the number of {t} now?", "Count the {t} that {n} has now."]


def word_problem(split) -> Example:
    rng = split.rng

    def skeleton():
        kind = rng.choice(("++", "+-", "-+", "--", "+*", "*+", "*-"))
        first = _PACK_OPENINGS if kind[0] == "*" else _OPENINGS
        events = {"+": _GAINS, "-": _LOSSES, "*": _PACKS}
        picks = [rng.choice(first)]
        picks += [rng.choice(events[k]) for k in (kind[1:] if kind[0] == "*" or kind[1] == "*" else kind)]
        picks.append(rng.choice(_QUESTIONS))
        return " ".join(picks), kind

    def numbers():
        if kind in ("*+", "*-"):
            p, x = rng.randint(2, 9), rng.randint(2, 12)
            y = rng.randint(2, 60) if kind == "*+" else rng.randint(1, p * x - 1)
            return f"{kind} {p} {x} {y}", p, x, y
        if kind == "+*":
            return (lambda p, x, y: (f"{kind} {p} {x} {y}", p, x, y))(rng.randint(2, 9), rng.randint(2, 99), rng.randint(2, 12))
        while True:
            x, y, z = rng.randint(2, 99), rng.randint(1, 60), rng.randint(1, 60)
            after = x + y if kind[0] == "+" else x - y
            final = after + z if kind[1] == "+" else after - z
            if after > 0 and final >= 0:
                return f"{kind} {x} {y} {z}", x, y, z

    text, kind = split.draw("word skeleton", skeleton)
    _, first, second, third = split.draw("word numbers", numbers)
    name, mate = person(split), person(split)
    fill = {"n": name, "m": mate, "t": rng.choice(THINGS), "c": rng.choice(CONTAINERS)}
    if kind[0] == "*":
        total = first * second
        final = total + third if kind == "*+" else total - third
        steps = [f"{first}*{second}={total}", f"{total}{kind[1]}{third}={final}"]
        text = text.format(p=first, x=second, y=third, **fill)
    elif kind == "+*":
        total = first * third
        final = second + total
        steps = [f"{first}*{third}={total}", f"{second}+{total}={final}"]
        text = text.format(p=first, x=second, y=third, **fill)
    else:
        after = first + second if kind[0] == "+" else first - second
        final = after + third if kind[1] == "+" else after - third
        steps = [f"{first}{kind[0]}{second}={after}", f"{after}{kind[1]}{third}={final}"]
        head, tail = text.split(". ", 1)
        event, rest = tail.split(". ", 1)
        text = ". ".join([head.format(x=first, **fill), event.format(y=second, **fill), rest.format(y=third, **fill)])
    return Example("word_problem", text, str(final), thought="\n".join(steps))
