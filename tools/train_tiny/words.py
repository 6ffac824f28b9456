"""Provides word lists and made-up names. Everything here was written for this project; nothing is downloaded."""

GIRLS = """Anna Bella Clara Dora Ella Fiona Grace Hanna Ida Julia Kira Lena Mia Nora Olive Paula Rosa Sara Tilda Uma
Vera Wendy Yara Zoe Alma Betty Cora Daisy Eva Flora Gina Hazel Iris Jane Lily Maya Nina Ruby Stella Tess""".split()
BOYS = """Adam Ben Carl David Emil Felix George Henry Ivan Jack Karl Leo Max Noah Oscar Paul Robin Sam Tom Victor Will
Aron Bruno Colin Dan Eric Finn Gus Hugo Jonas Kurt Luca Milo Nick Otto Peter Ralph Simon Theo Walter""".split()

ANIMALS = """fox rabbit bear owl mouse hedgehog squirrel otter badger duck goose frog turtle cat dog pony goat sheep
crow wolf deer beaver mole seal crab whale fish snail""".split()
ADJECTIVES = """brave little clever quiet young old kind curious lonely cheerful shy gentle proud hungry sleepy patient
stubborn tiny careful busy""".split()
PLACES = """forest|village|harbour|mountain|valley|island|river|meadow|lighthouse|garden|library|market|mill|castle|
farm|lake|town|beach|cave|bridge|windmill|orchard|bakery|school|station|workshop""".replace("\n", "").split("|")
REGIONS = "forest village harbour valley meadow island garden town castle farm orchard mountains".split()
COLOURS = "red blue green yellow white black brown orange purple grey pink silver golden".split()
WEATHER = ["sunny", "windy", "rainy", "cold", "warm", "foggy", "snowy", "stormy", "bright", "grey"]
OBJECTS = """key lamp map boat kite drum bell book letter coin ring basket lantern flute clock box hat scarf blanket
bucket ladder rope cup spoon mirror shell stone feather button compass""".split()
FOODS = """bread|soup|honey|apples|pancakes|berries|cheese|carrots|nuts|cake|porridge|plums|pears|tea|cookies""".split("|")
THINGS = """apples pears marbles books pencils stickers coins shells buttons cards eggs cookies stones stamps balloons
tickets bottles flowers beads cups nuts plums boxes candles lemons""".split()
CONTAINERS = "bags boxes baskets packs trays jars shelves crates".split()
JOBS = """baker teacher farmer doctor pilot painter carpenter nurse tailor gardener cook driver sailor clerk
librarian miller smith singer writer engineer""".split()
HOBBIES = """chess swimming painting running cooking reading dancing fishing singing cycling climbing knitting
sailing gardening drawing""".split()
PETS = "cat dog rabbit parrot hamster turtle pony goldfish goat duck".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
UNITS = "celsius fahrenheit".split()
LANGUAGES = "English French German Spanish Italian Danish Greek Polish Turkish Finnish".split()

_ONSETS = "b br d dr f fl g gr h j k kl l m n p pr r s st t tr v w z th sh".split()
_VOWELS = "a e i o u a e i o ai ea ou".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "m", "k", "t", "nd", "rn", "x"]
_PLACE_ENDINGS = "ford ton by wick ham mouth field dale burg haven stead more".split()
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def synthetic_name(split) -> str:
    """Returns a pronounceable made-up name such as Draivon; the training and held-out sides never share one."""
    rng = split.rng
    if split.plain_names:
        return rng.choice(GIRLS + BOYS)

    def make():
        syllables = rng.choice((2, 2, 2, 3))
        text = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
        return text.capitalize()

    return split.draw("name", make)


def synthetic_place(split) -> str:
    rng = split.rng
    if split.plain_names:
        return rng.choice(_PLACE_ENDINGS).capitalize()

    def make():
        return (rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) + rng.choice(_PLACE_ENDINGS)).capitalize()

    return split.draw("name", make)


def syllables() -> list[str]:
    """Returns all syllables of made-up names (for the tokenizer)."""
    starts = sorted({o + v for o in _ONSETS for v in _VOWELS})
    ends = sorted({v + c for v in _VOWELS for c in _CODAS if c})
    closed = [s + c for s in starts for c in _CODAS if c]
    return [s.capitalize() for s in starts + closed] + starts + ends + _PLACE_ENDINGS


def person(split) -> str:
    """Returns a name for a task: mostly made up, on the training side also one of the story names."""
    if not split.held_out and split.rng.random() < 0.25:
        return split.rng.choice(GIRLS + BOYS)
    return synthetic_name(split)


def code(split, low: int, high: int) -> str:
    """Returns a string of capital letters; the tokenizer keeps each capital letter as one token."""
    rng = split.rng
    return split.draw("code", lambda: "".join(rng.choices(CAPITALS, k=rng.randint(low, high))))


def article(word: str) -> str:
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


# Tasks sort and count these lower-case words, as they do codes. All of them are in the tokenizer's training text.
COMMON = sorted(set(ANIMALS + PLACES + COLOURS + OBJECTS + [f for f in FOODS] + THINGS + JOBS + HOBBIES + ADJECTIVES))
