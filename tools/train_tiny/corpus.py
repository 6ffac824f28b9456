"""Makes the training mixture: the share of each generator, and flat batches of tokens made by worker processes."""
import multiprocessing as mp
import os
import random

import numpy as np

import smalltalk
import stories
import tasks_json
import tasks_math
import tasks_strings
from chat_format import ASSISTANT, BOS, END_THINK, EOS, THINK, USER
from heldout import Split

# Each entry is (share of documents, generator of an Example).
TASKS = {
    "addition": (0.12, tasks_math.addition),
    "multiplication": (0.16, tasks_math.multiplication),
    "word_problem": (0.14, tasks_math.word_problem),
    "lookup": (0.03, tasks_strings.lookup),
    "sort": (0.12, tasks_strings.sorting),
    "count": (0.07, tasks_strings.counting),
    "copy": (0.07, tasks_strings.copying),
    "json": (0.10, tasks_json.json_object),
    "tool_call": (0.05, tasks_json.tool_request),
    "small_talk": (0.04, smalltalk.small_talk),
    "story": (0.04, stories.story_chat),
}
EVAL_TASKS = ["addition", "multiplication", "word_problem", "lookup", "sort", "count", "copy", "json", "tool_call"]
_CHAT_TASKS = ["addition", "word_problem", "copy", "json", "small_talk", "small_talk", "small_talk", "story", "count"]
MAX_DOCS = 2048  # per batch
MAX_LENGTH = 2304  # tokens in one document


def conversation(split):
    """Makes several turns in one chat, rendered as the template renders history: earlier thoughts are dropped."""
    rng = split.rng
    turns = [TASKS[rng.choice(_CHAT_TASKS)][1](split) for _ in range(rng.randint(2, 4))]
    segments = []
    for i, e in enumerate(turns):
        think = e.thought is not None and i == len(turns) - 1
        segments.append(((BOS if i == 0 else "") + USER + e.user + ASSISTANT + (THINK if think else END_THINK), False))
        segments.append(((e.thought + END_THINK if think else "") + e.answer + EOS, think or e.thought is None))
    return segments


_SYSTEMS = ["You are a helpful assistant.", "You are Hadal tiny.", "Answer briefly.", "You are a friendly helper.", "Be kind."]
_SHORT_THOUGHTS = {"copy": "I copy the text.", "json": "I fill in the fields.", "tool_call": "I call a tool."}


def vary(example, rng):
    """Sometimes uses the other thinking mode or a system prompt, so that both occur in training."""
    if example.system is None and rng.random() < 0.08:
        example.system = rng.choice(_SYSTEMS)
    if rng.random() < 0.12:
        if example.task in _SHORT_THOUGHTS:
            example.thought = _SHORT_THOUGHTS[example.task]
        elif example.thought is not None and example.task in ("addition", "multiplication", "word_problem"):
            example.answer, example.thought = f"{example.thought}\nAnswer: {example.answer}", None
        elif example.task in ("lookup", "sort", "count"):
            example.thought = None
    return example


_MIX = [(share, lambda split, f=f: vary(f(split), split.rng).segments()) for share, f in TASKS.values()]
_MIX += [(0.015, lambda split: tasks_math.subtraction(split).segments())]
_MIX += [(0.06, tasks_strings.lookup_series), (0.04, stories.story_plain), (0.05, conversation)]
_WEIGHTS = [m[0] for m in _MIX]
_MAKERS = [m[1] for m in _MIX]


def document(split):
    return split.rng.choices(_MAKERS, _WEIGHTS)[0](split)


def encode(tokenizer, documents):
    """Returns [(ids, is_target)] as int lists. Segments meet only at special tokens, so they can be encoded one by one."""
    flat = [text for segments in documents for text, _ in segments]
    encoded = iter(tokenizer.encode_batch(flat, add_special_tokens=False))
    result = []
    for segments in documents:
        ids, target = [], []
        for _, is_target in segments:
            piece = next(encoded).ids
            ids += piece
            target += [is_target] * len(piece)
        result.append((ids[:MAX_LENGTH], target[:MAX_LENGTH]))
    return result


def pack(pairs, num_tokens: int):
    """Cuts a stream of (ids, target) into flat batches: tokens u16[n], target bool[n], starts i32[MAX_DOCS + 1]."""
    tokens, target = np.zeros(num_tokens, np.uint16), np.zeros(num_tokens, bool)
    starts, used = [0], 0
    for ids, is_target in pairs:
        take = min(len(ids), num_tokens - used)
        tokens[used:used + take] = ids[:take]
        target[used:used + take] = is_target[:take]
        used += take
        starts.append(used)
        if used == num_tokens or len(starts) == MAX_DOCS:
            starts[-1] = num_tokens  # tokens that are left over belong to the last document, without targets
            padded = np.full(MAX_DOCS + 1, num_tokens, np.int32)
            padded[:len(starts)] = starts
            yield tokens.copy(), target.copy(), padded
            tokens[:], target[:] = 0, False
            starts, used = [0], 0


def _stream(tokenizer, split):
    while True:
        yield from encode(tokenizer, [document(split) for _ in range(256)])


def _work(tokenizer_path, seed, num_tokens, queue):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(tokenizer_path)
    split = Split(random.Random(seed), held_out=False)
    for batch in pack(_stream(tokenizer, split), num_tokens):
        queue.put(batch)


class BatchSource:
    """Runs worker processes that generate, tokenise and pack; next() waits for a fresh batch."""

    def __init__(self, tokenizer_path, seed: int, num_tokens: int, num_workers: int):
        context = mp.get_context("spawn")
        self.queue = context.Queue(maxsize=4 * num_workers)
        self.workers = [context.Process(target=_work, args=(tokenizer_path, seed * 1000 + i, num_tokens, self.queue), daemon=True)
                        for i in range(num_workers)]
        for w in self.workers:
            w.start()

    def next(self):
        return self.queue.get()

    def close(self):
        for w in self.workers:
            w.terminate()
