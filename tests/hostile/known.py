"""Lists the cases that the program does not pass yet, under the change after which each is expected to pass. hostile_test.py
lists them as known; remove the names that it reports as passing."""

NAMES = {
    "steps of prompts alone are cut where another client may come": [
        "amplification/64 clients, prompts of 4000 tokens",
    ],
}
KNOWN_UNTIL = {name: change for change, names in NAMES.items() for name in names}
