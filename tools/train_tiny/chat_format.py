"""Writes the V3.1 chat format as text, and documents as alternating context and target segments."""

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEP = "<｜tool▁sep｜>"
OUTPUTS_BEGIN = "<｜tool▁outputs▁begin｜>"
OUTPUTS_END = "<｜tool▁outputs▁end｜>"
OUTPUT_BEGIN = "<｜tool▁output▁begin｜>"
OUTPUT_END = "<｜tool▁output▁end｜>"

HEAD_TOKENS = [BOS, EOS, PAD]  # ids 0, 1, 2; special, so that detokenising skips them
TAIL_TOKENS = [USER, ASSISTANT, THINK, END_THINK, CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEP, OUTPUTS_BEGIN,
               OUTPUTS_END, OUTPUT_BEGIN, OUTPUT_END]  # the last ids; not special, as in the published vocabularies


def tool_call(name: str, arguments: str) -> str:
    return f"{CALLS_BEGIN}{CALL_BEGIN}{name}{SEP}{arguments}{CALL_END}{CALLS_END}"


def tool_prompt(tools: list[dict]) -> str:
    """Returns the text that announces tools in the system prompt. tools: {"name", "description", "parameters": JSON text}.
    V3.1's model card had double braces in it first, and the weights were trained with those; it has single ones now, which
    is what the template and Hadal say. The answers to the evaluation's questions are right with either."""
    blocks = "".join(f"\n### {t['name']}\nDescription: {t['description']}\n\nParameters: {t['parameters']}\n" for t in tools)
    return ("## Tools\nYou have access to the following tools:\n" + blocks +
            "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
            f"{CALLS_BEGIN}{CALL_BEGIN}tool_call_name{SEP}tool_call_arguments{CALL_END}"
            f"{{{{additional_tool_calls}}}}{CALLS_END}\n\nWhere:\n"
            "- `tool_call_name` must be an exact match to one of the available tools\n"
            "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
            "- For multiple tool calls, chain them directly without separators or spaces\n")


def prompt(messages: list[dict], thinking: bool) -> str:
    """Returns the rendered prompt up to the point where the model continues; every message role is system, user or assistant."""
    text = BOS + "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    for m in messages:
        if m["role"] == "user":
            text += USER + m["content"]
        elif m["role"] == "assistant":
            text += ASSISTANT + END_THINK + m["content"] + EOS
    return text + ASSISTANT + (THINK if thinking else END_THINK)


def answer_turn(thought: str | None, answer: str) -> str:
    """Returns what the model must write after prompt(): its thought, if there is one, and the answer."""
    return (thought + END_THINK if thought is not None else "") + answer + EOS


class Example:
    """Holds one question: prompt messages, the thought (None: answered without thinking) and the exact answer."""

    def __init__(self, task, user, answer, thought=None, system=None, compare="text"):
        self.task, self.user, self.answer = task, user, answer
        self.thought, self.system, self.compare = thought, system, compare

    def messages(self):
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + [{"role": "user", "content": self.user}]

    def segments(self):
        """Returns [(text, is_target)]: the model is trained on targets only."""
        return [(prompt(self.messages(), self.thought is not None), False),
                (answer_turn(self.thought, self.answer), True)]
