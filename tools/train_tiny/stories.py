"""Makes short stories from a grammar: a hero, a place, a wish or a trouble, a helper and an ending. All of it was written for
this project."""
from chat_format import BOS, EOS, Example
from words import (ADJECTIVES, ANIMALS, BOYS, COLOURS, FOODS, GIRLS, OBJECTS, PLACES, REGIONS, WEATHER)
from words import article as a

_OPEN = ["Once upon a time, there was {hero_a} named {N}. {N} lived near the {place}.",
         "{N} was {hero_a} who lived in a small house by the {place}.",
         "In the quiet {place} there lived {hero_a} named {N}.",
         "Long ago, {hero_a} called {N} lived at the edge of the {place}.",
         "Not far from the {place} lived {hero_a}. {His} name was {N}.",
         "There once was {hero_a} named {N}, and everybody in the {place} knew {him}.",
         "{N} was {hero_a}. {He} had lived beside the {place} all {his} life."]
_HABIT = ["Every morning {he} ate {food} and looked out of the window.", "{He} loved to walk along the path and count the {colour} flowers.",
          "{He} liked nothing more than {food} and a good story.", "In the evenings {he} sat by the fire and listened to the wind.",
          "{He} had an old {object} that {he} carried everywhere.", "People said that {he} was the most {adj} {kind} in the whole {place}.",
          "{He} often helped the neighbours and never asked for anything in return.", "", "",
          "{He} kept a {colour} {object} on the shelf and polished it every week."]
_DAY = ["One {weather} day,", "One {weather} morning,", "One {weather} afternoon,", "Then, one {weather} evening,", "On a {weather} day in spring,",
        "One {weather} day in autumn,", "Early one {weather} morning,"]

_LOST = (["{day} {N} could not find {his} {object}. {He} looked under the bed and behind the door, but it was gone.",
          "{day} {N} lost {his} {colour} {object} on the way to the {place2}.",
          "{day} the {object} that {N} loved so much fell out of {his} pocket, and {he} did not notice."],
         ["{He} felt sad, because the {object} had been a gift from {his} grandmother.", "\"Where can it be?\" {he} asked. \"I had it yesterday.\"",
          "{He} walked back the whole way and looked behind every stone.", "{He} sat down and did not know what to do."],
         ["Then {M} the {kind2} came by. \"Why are you so sad?\" asked {M}. {N} told {M} everything.",
          "{M} the {kind2} saw {him} and stopped. \"I will help you look,\" said {M}.",
          "Luckily {he} met {M}, {a_adj2} {kind2}. \"Two pairs of eyes see more than one,\" said {M}."],
         ["They searched until the sun went down, and at last they found the {object} under a {colour2} leaf near the {place2}.",
          "Together they walked to the {place2}, and there it was, beside an old {object2}.",
          "{M} had a clever idea. \"Let us follow your footprints,\" said {M}. The footprints led them straight to the {object}."],
         ["{N} thanked {M} and shared {his} {food} with {him2}.", "From that day on, {N} and {M} were best friends.",
          "{N} was so happy that {he} danced all the way home.", "That night {N} slept with the {object} beside {him}."])
_STORM = (["{day} a great storm came over the {place}. The wind was so strong that the trees bent to the ground.",
           "{day} dark clouds gathered above the {place}, and soon it began to rain.",
           "{day} a terrible storm broke the roof of the {place2}."],
          ["{N} closed the window and lit a small lamp.", "Then {N} heard a voice outside. Somebody was calling for help.",
           "{N} was afraid, but {he} knew that others might need help.", "{N} thought of {M} the {kind2}, who lived all alone."],
          ["{He} took a {object} and ran out into the rain. Near the {place2} {he} found {M} the {kind2}, wet and cold.",
           "{He} put on {his} {colour} coat and went to look for {M} the {kind2}.",
           "With {his} {object} in {his} hand, {he} walked through the storm until {he} reached {M} the {kind2}."],
          ["\"Come with me,\" said {N}. \"My house is warm and dry.\"", "{He} took {M} by the hand, and together they found the way back.",
           "\"You came for me!\" said {M}. \"I did not think that anybody would.\""],
          ["They ate {food} by the fire until the storm was over.", "In the morning the sun was shining, and the whole {place} was quiet again.",
           "{M} never forgot what {N} had done.", "After that night, nobody in the {place} was ever alone in a storm."])
_WISH = (["{day} {N} had an idea. {He} wanted to see the {place2}, where nobody from the {place} had ever been.",
          "{N} had only one wish: {he} wanted to learn how to build a {object}.",
          "{N} dreamed of seeing the great {place2} with {his} own eyes."],
         ["\"That is too far for you,\" said the others, but {N} did not listen.", "{He} packed some {food} and a {object2}, and early in the morning {he} set out.",
          "{He} asked everybody for advice, but nobody could help.", "All the neighbours laughed, but {N} only smiled."],
         ["On the way {he} met {M}, {a_adj2} {kind2}. \"I know the way,\" said {M}. \"I will come with you.\"",
          "After three days {he} met {M} the {kind2}, who knew all about it.",
          "{M} the {kind2} heard about it and said, \"If you never try, you will never know.\""],
         ["It was not easy. Twice they lost the path, and once they had nothing left to eat.", "They worked hard from morning until evening, day after day.",
          "They crossed a wide river and climbed a steep hill."],
         ["At last it was done, and {N} was the happiest {kind} in the world.", "When they finally arrived, {N} could not believe {his} eyes. It was more beautiful than any dream.",
          "\"We did it!\" cried {N}, and {M} laughed with joy.", "And when {he} came home, everybody wanted to hear the story."])
_SHARE = (["{day} {N} found a basket full of {food} near the {place2}.", "{day} {N} baked so much {food} that {he} could not eat it all.",
           "{day} {N} won a big box of {food} at the fair."],
          ["\"It is all mine,\" thought {N}, and {he} hid it behind the door.", "{He} wanted to keep everything for {himself}.",
           "{He} ate and ate until {his} stomach hurt."],
          ["Then {M} the {kind2} knocked at the door. \"I have not eaten since yesterday,\" said {M}.",
           "Soon {he} saw {M}, {a_adj2} {kind2}, sitting in front of the {place2} with nothing to eat.",
           "In the evening {M} the {kind2} came by and looked very hungry."],
          ["{N} felt ashamed. \"Come in,\" {he} said. \"There is enough for both of us.\"", "{N} thought for a while. Then {he} gave half of the {food} to {M}.",
           "\"Take as much as you like,\" said {N}, and {he} meant it."],
          ["It was the best meal that {N} ever had, because {he} did not eat alone.", "The next day {M} brought {him} a {colour} {object} to say thank you.",
           "Since then they have eaten together every Sunday.", "{N} learned that {food} tastes better when it is shared."])
_SECRET = (["{day} {N} discovered a small door behind the {place2}.", "{day} {N} found an old {object} with strange letters on it.",
            "{day} {N} saw a {colour} light in the {place2}."],
           ["\"What can this be?\" {he} whispered.", "{He} had never seen anything like it before.", "{His} heart beat fast, but {he} wanted to know more."],
           ["{He} showed it to {M} the {kind2}, who had lived in the {place} for many years.", "{He} ran to {M}, {a_adj2} {kind2}, and told {him2} about it.",
            "{M} the {kind2} came along, because two are braver than one."],
           ["Behind it they found a room full of old books and a {colour2} {object2}.", "\"My grandfather told me about this,\" said {M}. \"It belonged to the first {kind} of the {place}.\"",
            "Step by step they went closer, and then they saw it: a tiny {animal3}, who had made a nest there."],
           ["They promised to keep the secret, and they kept it for a very long time.", "They went home as quietly as they had come, and smiled.",
            "Now and then they go back there, and every time they find something new.", "Even today, only {N} and {M} know the secret of the {place2}."])
_RACE = (["{day} there was a race from the {place} to the {place2}. {N} wanted to win more than anything.",
          "{day} everybody came to the {place2} for the great race.", "{day} {M} the {kind2} said to {N}, \"I am faster than you. Let us race to the {place2}!\""],
         ["{N} ran as fast as {he} could, and soon {he} was in front.", "At the start {N} was slow, but {he} never stopped.", "{N} practised for many days and ate nothing but {food}."],
         ["Half way to the {place2}, {M} the {kind2} fell and could not get up.", "Suddenly {N} heard a cry. {M} the {kind2} had fallen into a ditch.",
          "Then {M} the {kind2} hurt a foot on a sharp stone."],
         ["{N} stopped at once. \"Winning can wait,\" {he} said, and {he} helped {M} to stand up.", "{N} could see the end of the race, but {he} turned around and went back.",
          "{N} lifted {M} on {his} back and carried {him2} the rest of the way."],
         ["They reached the {place2} last, but everybody clapped for them.", "{N} did not win the race, but {he} won a friend.",
          "\"You are the real winner,\" said {M}.", "They got a {colour} {object} as a prize for kindness."])
_PLOTS = [_LOST, _STORM, _WISH, _SHARE, _SECRET, _RACE]
_END = ["", "", "", "And that is the end of the story.", "The end.", "And they lived happily ever after.",
        "From then on, every day was a good day.", "And whenever somebody asks, {N} tells this story."]
_ASKS = ["Tell me a story.", "Tell me a short story.", "Write a short story.", "Please tell me a story.", "I would like to hear a story.",
         "Can you tell me a story?", "Write a story for children.", "A short story, please."]
_ASKS_ABOUT = ["Tell me a story about {h}.", "Write a short story about {h}.", "Tell me a short story about {h}.", "Please write a story about {h}.",
               "Can you tell me a story about {h}?", "I would like a story about {h}."]
_PRONOUNS = {"he": ("he", "him", "his", "himself"), "she": ("she", "her", "her", "herself")}


def _character(rng):
    female = rng.random() < 0.5
    kind = rng.choice(ANIMALS + (["girl", "woman", "queen", "girl"] if female else ["boy", "man", "king", "boy"]))
    return {"name": rng.choice(GIRLS if female else BOYS), "kind": kind, "adj": rng.choice(ADJECTIVES),
            "pronouns": _PRONOUNS["she" if female else "he"]}


def story_parts(split):
    """Returns (hero description, text). No combination of opening, plot sentences and ending occurs both in training
    and on the held-out side."""
    rng = split.rng

    def skeleton():
        plot = rng.randrange(len(_PLOTS))
        picks = tuple(rng.randrange(len(options)) for options in _PLOTS[plot])
        picks = (rng.randrange(len(_OPEN)), rng.randrange(len(_HABIT)), plot) + picks + (rng.randrange(len(_END)),)
        return str(picks), picks

    _, picks = split.draw("story skeleton", skeleton)
    opening, habit, plot = picks[:3]
    hero, friend = _character(rng), _character(rng)
    while friend["name"] == hero["name"] or friend["kind"] == hero["kind"]:
        friend = _character(rng)
    he, him, his, himself = hero["pronouns"]
    place = rng.choice(REGIONS)
    place2 = rng.choice([p for p in PLACES if p != place])
    thing, thing2 = rng.sample(OBJECTS, 2)
    colour, colour2 = rng.sample(COLOURS, 2)
    fill = {"N": hero["name"], "M": friend["name"], "kind": hero["kind"], "kind2": friend["kind"], "adj": hero["adj"],
            "hero_a": a(hero["adj"]) + " " + hero["kind"], "a_adj2": a(friend["adj"]), "he": he, "him": him, "his": his,
            "himself": himself, "He": he.capitalize(), "His": his.capitalize(), "him2": friend["pronouns"][1], "place": place,
            "place2": place2, "object": thing, "object2": thing2, "colour": colour, "colour2": colour2,
            "food": rng.choice(FOODS), "animal3": rng.choice(ANIMALS), "weather": rng.choice(WEATHER)}
    fill["day"] = rng.choice(_DAY).format(**fill)
    sentences = [_OPEN[opening], _HABIT[habit]] + [o[i] for o, i in zip(_PLOTS[plot], picks[3:])] + [_END[picks[-1]]]
    paragraphs = [" ".join(s for s in sentences[:2] if s), " ".join(s for s in sentences[2:5] if s),
                  " ".join(s for s in sentences[5:] if s)]
    text = ("\n\n" if picks[0] % 2 else " ").join(paragraphs).format(**fill)
    hero = dict(hero, place=place2, object=thing if "{object}" in "".join(sentences) else None, region=place)
    return hero, text.replace("a orange", "an orange").replace("a old ", "an old ")


def story_chat(split) -> Example:
    rng = split.rng
    hero, text = story_parts(split)
    if rng.random() < 0.5:
        who = rng.choice([a(hero["kind"]), a(hero["adj"]) + " " + hero["kind"], f"{a(hero['kind'])} named {hero['name']}"])
        if hero["place"] in text and rng.random() < 0.25:
            who += f" and {a(hero['place'])}"
        elif hero["object"] and rng.random() < 0.25:
            who += f" and {a(hero['object'])}"
        elif rng.random() < 0.2:
            who += f" in the {hero['region']}"
        ask = rng.choice(_ASKS_ABOUT).format(h=who)
    else:
        ask = rng.choice(_ASKS)
    thought = f"The user wants a story. It will be about {a(hero['kind'])} named {hero['name']}." if rng.random() < 0.2 else None
    return Example("story", ask, text, thought=thought)


def story_plain(split):
    """Returns a story as plain text after bos, so that the model also continues a text without chat markers."""
    return [(BOS, False), (story_parts(split)[1] + EOS, True)]
