"""Makes tasks that fill a JSON object from a text, or turn a request into a tool call."""
import json

from chat_format import Example, tool_call, tool_prompt
from words import (COLOURS, DAYS, FOODS, HOBBIES, JOBS, LANGUAGES, MONTHS, OBJECTS, PETS, UNITS,
                   article, code, person, synthetic_place)

# Maps each field to (a function that draws a value, wordings of the fact). {n} is the person's name, {v} the value.
_FACTS = {
    "age": (lambda s: s.rng.randint(5, 99), ["{n} is {v} years old.", "{n} turned {v} this year.", "The age is {v}.",
                                             "{n} is {v} now."]),
    "city": (synthetic_place, ["{n} lives in {v}.", "The home town is {v}.", "{n} comes from {v}.", "{n} moved to {v}."]),
    "job": (lambda s: s.rng.choice(JOBS), ["{n} works as {av}.", "The job is {v}.", "{n} earns money as {av}.",
                                           "By trade {n} is {av}."]),
    "hobby": (lambda s: s.rng.choice(HOBBIES), ["{n} likes {v}.", "The hobby is {v}.", "On Sundays {n} enjoys {v}.",
                                                "{n} spends the evenings with {v}."]),
    "pet": (lambda s: s.rng.choice(PETS), ["{n} has a {v} at home.", "The pet is a {v}.", "{n} keeps a {v}.",
                                           "{n} takes care of a {v}."]),
    "colour": (lambda s: s.rng.choice(COLOURS), ["The favourite colour is {v}.", "{n} loves the colour {v}.",
                                                 "{n} always wears {v}."]),
    "food": (lambda s: s.rng.choice(FOODS), ["{n} eats {v} every day.", "The favourite food is {v}.", "{n} loves {v}."]),
    "room": (lambda s: s.rng.randint(100, 999), ["The room is {v}.", "{n} has room {v}.", "{n} can be found in room {v}."]),
    "language": (lambda s: s.rng.choice(LANGUAGES), ["{n} speaks {v}.", "The language is {v}.", "At home {n} talks in {v}."]),
    "birth_month": (lambda s: s.rng.choice(MONTHS), ["{n} was born in {v}.", "The birthday is in {v}.",
                                                     "{n} has a birthday in {v}."]),
    "free_day": (lambda s: s.rng.choice(DAYS), ["{n} is free on {v}.", "The free day is {v}.", "{n} does not work on {v}."]),
    "member_id": (lambda s: code(s, 4, 6), ["The member id is {v}.", "{n} has the member id {v}."]),
    "married": (lambda s: s.rng.random() < 0.5, {True: ["{n} is married.", "{n} has a spouse."],
                                                 False: ["{n} is not married.", "{n} is single."]}),
    "children": (lambda s: s.rng.randint(0, 9), ["{n} has {v} children.", "The number of children is {v}."]),
}
_ASKS = ["Fill in a JSON object with the fields {f}.", "Write a JSON object with the fields {f}.",
         "Give me JSON with the fields {f}.", "Extract {f} as JSON.", "Make a JSON object with {f}.",
         "Return the fields {f} as a JSON object."]


def json_object(split) -> Example:
    rng = split.rng

    def skeleton():
        fields = rng.sample(list(_FACTS), rng.randint(3, 5) if split.held_out else rng.randint(1, 5))
        extra = [f for f in _FACTS if f not in fields]
        told = fields + rng.sample(extra, rng.choice((0, 0, 1, 2)))
        rng.shuffle(told)
        picks = [(f, rng.randrange(len(_FACTS[f][1]))) for f in told]
        order = list(fields)
        order.insert(rng.choice((0, 0, 0, len(order))), "name")
        ask = rng.randrange(len(_ASKS))
        return f"{picks}{order}{ask}", picks, order, ask

    _, picks, order, ask = split.draw("json skeleton", skeleton)
    name = person(split) + (" " + person(split) if rng.random() < 0.5 else "")
    first = name.split(" ")[0]
    values, sentences = {"name": name}, []
    for i, (field, wording) in enumerate(picks):
        draw, wordings = _FACTS[field]
        values[field] = draw(split)
        options = wordings[values[field]] if isinstance(wordings, dict) else wordings
        text = options[wording].format(n=name if i == 0 else first, v=values[field],
                                             av=article(str(values[field])))
        if i == 0 and "{n}" not in options[wording]:
            text = f"This is {name}. " + text
        sentences.append(text)
    fields = ", ".join(order)
    ask_text, body = _ASKS[ask].format(f=fields), " ".join(sentences)
    user = f"{ask_text}\n{body}" if rng.random() < 0.7 else f"{body}\n{ask_text}"
    return Example("json", user, json.dumps({f: values[f] for f in order}), compare="json")


# name: (description, {argument: (JSON type, description, draw)}, requests)
_TOOLS = {
    "get_weather": ("Get the weather of a city on a day.",
                    {"city": ("string", synthetic_place), "day": ("string", lambda s: s.rng.choice(DAYS)),
                     "unit": ("string", lambda s: s.rng.choice(UNITS)), "hours": ("integer", lambda s: s.rng.randint(1, 48))},
                    "Tell me the weather"),
    "send_message": ("Send a message to a person.",
                     {"recipient": ("string", person), "channel": ("string", lambda s: s.rng.choice(("mail", "phone", "chat"))),
                      "priority": ("integer", lambda s: s.rng.randint(1, 9)), "topic": ("string", lambda s: s.rng.choice(HOBBIES))},
                     "Send a message"),
    "book_room": ("Book a hotel room.",
                  {"guest": ("string", person), "city": ("string", synthetic_place), "nights": ("integer", lambda s: s.rng.randint(1, 30)),
                   "day": ("string", lambda s: s.rng.choice(DAYS)), "beds": ("integer", lambda s: s.rng.randint(1, 6))},
                  "Book a room"),
    "order_item": ("Order an item from the shop.",
                   {"item": ("string", lambda s: s.rng.choice(OBJECTS)), "amount": ("integer", lambda s: s.rng.randint(1, 99)),
                    "colour": ("string", lambda s: s.rng.choice(COLOURS)), "customer": ("string", person)},
                   "Order an item"),
    "find_train": ("Find a train between two towns.",
                   {"origin": ("string", synthetic_place), "destination": ("string", synthetic_place),
                    "day": ("string", lambda s: s.rng.choice(DAYS)), "seats": ("integer", lambda s: s.rng.randint(1, 9))},
                   "Find a train"),
    "set_alarm": ("Set an alarm.",
                  {"hour": ("integer", lambda s: s.rng.randint(0, 23)), "minute": ("integer", lambda s: s.rng.randint(0, 59)),
                   "day": ("string", lambda s: s.rng.choice(DAYS)), "label": ("string", lambda s: s.rng.choice(OBJECTS))},
                  "Set an alarm"),
}
_OPENERS = ["{r}", "Please {r}", "Can you {r}", "I would like you to {r}", "Now {r}", "Could you {r}"]
_ARGUMENT_WORDINGS = [" with {a} {v}", ", {a} {v}", " for {a} {v}", " ({a}: {v})", " where {a} is {v}"]


def _schema(arguments) -> str:
    return json.dumps({"type": "object", "properties": {k: {"type": t} for k, (t, _) in arguments.items()},
                       "required": list(arguments)})


def tool_request(split) -> Example:
    rng = split.rng

    def skeleton():
        name = rng.choice(list(_TOOLS))
        arguments = list(_TOOLS[name][1])
        rng.shuffle(arguments)
        opener = rng.randrange(len(_OPENERS))
        wording = [rng.randrange(len(_ARGUMENT_WORDINGS)) for _ in arguments]
        offered = [name] + rng.sample([t for t in _TOOLS if t != name], rng.choice((0, 1, 1, 2)))
        rng.shuffle(offered)
        return f"{name}{arguments}{opener}{wording}", name, arguments, opener, wording, offered

    _, name, arguments, opener, wording, offered = split.draw("tool skeleton", skeleton)
    spec = _TOOLS[name][1]
    values = {a: spec[a][1](split) for a in arguments}
    request = _TOOLS[name][2]
    request = request[0].lower() + request[1:] if opener else request
    text = _OPENERS[opener].format(r=request)
    for a, w in zip(arguments, wording):
        text += _ARGUMENT_WORDINGS[w].format(a=a, v=values[a])
    system = tool_prompt([{"name": t, "description": _TOOLS[t][0], "parameters": _schema(_TOOLS[t][1])} for t in offered])
    # Arguments come in the order of the request, because the model copies them in the order in which it reads
    # them.
    return Example("tool_call", text + ".", tool_call(name, json.dumps({a: values[a] for a in arguments})), system=system)
