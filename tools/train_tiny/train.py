"""Trains models/hadal-tiny on generated text alone. Run one command from the repository's root:

    python3 tools/train_tiny/train.py --minutes 15 --run /tmp/hadal-tiny-run

The learning rate follows the wall clock, so a run always ends annealed and in time. It exports the current FP8 model
and a resumable state every --export-minutes into --run; the same command continues an interrupted run.
As in the DeepSeek-V3 report: expert load is balanced by a bias that only selection sees (no auxiliary loss), and a
NextN layer learns to predict one token further. In the last part weights are rounded through FP8 blocks in the forward
pass, so that the export loses nothing.
"""
import argparse
import json
import pathlib
import shutil
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import corpus
import evaluate
import export
from decode import Decoder
from model import Config, TinyModel
from optim import Optimiser

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIAS_SPEED = 0.001


def losses(model, tokens, target, positions, starts, draft_weight):
    """Returns mean cross entropy over target tokens, plus draft_weight times NextN's; also both means and the expert loads."""
    logits, draft, loads = model(tokens, positions, starts, corpus.MAX_LENGTH)
    means = []
    for scores, ahead in ((logits, 1), (draft, 2)):
        weight = (target.roll(-ahead) & (positions.roll(-ahead) == positions + ahead)).float()
        each = F.cross_entropy(scores.float(), tokens.roll(-ahead), reduction="none")
        means.append((each * weight).sum() / weight.sum().clamp_min(1))
    return means[0] + draft_weight * means[1], means[0], means[1], loads


def document_positions(starts, n):
    index = torch.arange(n, device=starts.device, dtype=starts.dtype)
    document = torch.searchsorted(starts, index, right=True) - 1
    return (index - starts[document]).long()


@torch.no_grad()
def acceptance(model, batches, device):
    """Returns the shares of target positions where NextN predicts the token that the model itself would generate
    greedily."""
    hit = torch.zeros(2, device=device)
    for tokens, target, starts in batches:
        positions = document_positions(starts, len(tokens))
        logits, draft, _ = model(tokens, positions, starts, corpus.MAX_LENGTH)
        own, guess = logits.argmax(-1).roll(-1), draft.argmax(-1)
        counted = target.roll(-2) & (positions.roll(-2) == positions + 2)
        hit += torch.stack([((own == guess) & counted).sum(), counted.sum()])
    return (hit[0] / hit[1].clamp_min(1)).item()


def held_out_batches(tokenizer, device, num_tokens):
    """Returns {name: one packed batch of held-out documents}: stories, the tasks, and the training mixture."""
    import random
    import stories
    from heldout import Split
    split = Split(random.Random(99), held_out=True)
    makers = {"stories": lambda: stories.story_plain(split), "mixture": lambda: corpus.document(split)}
    out = {}
    for name, maker in makers.items():
        stream = (pair for _ in iter(int, 1) for pair in corpus.encode(tokenizer, [maker() for _ in range(16)]))
        batch = next(corpus.pack(stream, num_tokens))
        out[name] = [to_device(batch, device)]
    return out


def to_device(batch, device):
    tokens, target, starts = (torch.from_numpy(x) for x in batch)
    return (tokens.long().to(device, non_blocking=True), target.to(device, non_blocking=True),
            starts.to(device, non_blocking=True))


def rate(fraction: float, step: int) -> float:
    """The learning rate warms up over 200 steps, is constant to 35 % of the time, and then follows a cosine down to 1 %."""
    import math
    warm = min(1.0, (step + 1) / 200)
    if fraction < 0.35:
        return warm
    return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, (fraction - 0.35) / 0.65))))


class Run:
    def __init__(self, args):
        self.args, self.device = args, args.device
        self.dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
        torch.manual_seed(args.seed)
        self.cfg = Config(args.template / "config.json")
        self.tokenizer_path = str(args.template / "tokenizer.json")
        self.tokenizer = Tokenizer.from_file(self.tokenizer_path)
        self.model = TinyModel(self.cfg).to(args.device)
        self.optimiser = Optimiser(self.model, args.lr, args.weight_decay, self.dtype, args.device)
        self.step, self.before = 0, 0.0  # seconds spent by earlier parts of this run
        self.started = time.time()
        self.questions = evaluate.load_questions(args.template / "eval", args.quick)
        args.run.mkdir(parents=True, exist_ok=True)
        state = args.run / "state.pt"
        if state.exists():
            saved = torch.load(state, map_location=args.device, weights_only=True)
            self.optimiser.load_state(saved["optimiser"])
            self.step, self.before = saved["step"], saved["elapsed"]
            for gate, bias in zip(self.model.gates(), saved["biases"]):
                gate.e_score_correction_bias.copy_(bias)
            self.log(event="resumed", step=self.step)

    def elapsed(self):
        return self.before + time.time() - self.started

    def log(self, **fields):
        line = json.dumps({"t": round(self.elapsed(), 1), **fields})
        print(line, flush=True)
        with open(self.args.run / "log.jsonl", "a") as f:
            f.write(line + "\n")

    def export(self):
        biases = [g.e_score_correction_bias for g in self.model.gates()]
        folder = self.args.run / "model"
        export.save(export.checkpoint_tensors(self.optimiser.values(), biases, self.cfg), folder)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if (self.args.template / name).exists():
                shutil.copy(self.args.template / name, folder / name)
        state = {"optimiser": self.optimiser.state(), "step": self.step, "elapsed": self.elapsed(), "biases": biases}
        torch.save(state, self.args.run / "state.tmp")
        (self.args.run / "state.tmp").replace(self.args.run / "state.pt")
        return folder

    def evaluate(self, questions, kv="bfloat16", keep_errors=0):
        decoder = Decoder(export.load_dequantised(self.args.run / "model"), self.cfg, self.device, kv)
        return evaluate.score(decoder, self.tokenizer, questions, keep_errors)

    def finish(self, held_out):
        """Scores the exported weights completely, and NextN's acceptance with the weights in training precision."""
        self.export()
        rates = {name: round(acceptance(self.model, batches, self.device), 4) for name, batches in held_out.items()}
        scores = {"method": "greedy; FP8 weights dequantised exactly, float32 arithmetic; KV rows rounded as named"}
        questions = evaluate.load_questions(self.args.template / "eval", self.args.final)
        for kv in ("bfloat16", "float32"):
            scores[f"kv_{kv}"], errors = self.evaluate(questions, kv, keep_errors=4)
            self.log(event="final", kv=kv, scores={k: f"{v['correct']}/{v['total']}" for k, v in scores[f"kv_{kv}"].items()})
        scores["nextn_first_draft_acceptance"] = rates
        scores["steps"], scores["tokens_seen"] = self.step, self.step * self.args.tokens
        (self.args.run / "model" / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")
        self.log(event="acceptance", **rates)
        for q, text in errors:
            self.log(event="wrong", task=q["task"], user=q["messages"][-1]["content"][-120:], got=text[-400:], want=q["answer"])
        asks = ["Tell me a story.", "Write a short story about a brave fox.", "Tell me a story about a rabbit named Mia.",
                "Who are you?", "What is 48213 + 9981?"]
        decoder = Decoder(export.load_dequantised(self.args.run / "model"), self.cfg, self.device, "bfloat16")
        prompts = [self.tokenizer.encode(evaluate.chat_format.prompt([{"role": "user", "content": a}], a[0:4] == "What"),
                                         add_special_tokens=False).ids for a in asks]
        for ask, ids in zip(asks, decoder.generate(prompts, 300, eos=1)):
            self.log(event="sample", ask=ask, text=self.tokenizer.decode(ids))

    def train(self):
        args = self.args
        source = corpus.BatchSource(self.tokenizer_path, args.seed + 7919 * self.step, args.tokens, args.workers)
        held_out = held_out_batches(self.tokenizer, self.device, args.tokens)
        step_losses = torch.compile(losses) if args.compile else losses
        sums, last_report, last_export = torch.zeros(2, device=self.device), time.time(), time.time()
        budget, waited, since = args.minutes * 60, 0.0, 0
        while self.elapsed() < budget and self.step < args.max_steps:
            asked = time.time()
            tokens, target, starts = to_device(source.next(), self.device)
            waited += time.time() - asked
            fraction = self.elapsed() / budget
            scale, rounding = rate(fraction, self.step), fraction >= args.round_from
            draft_weight = torch.tensor(0.3 if fraction < 0.7 else 0.1, device=self.device)
            positions = document_positions(starts, len(tokens))
            total, main, draft, loads = step_losses(self.model, tokens, target, positions, starts, draft_weight)
            total.backward()
            norm = self.optimiser.step(scale, rounding)
            with torch.no_grad():
                for gate, load in zip(self.model.gates(), loads):
                    gate.e_score_correction_bias += BIAS_SPEED * min(1.0, 4 * scale) * torch.sign(load.mean() - load)
                sums += torch.stack([main.detach().float(), draft.detach().float()])
            self.step, since = self.step + 1, since + 1
            if self.step % args.report == 0 or self.step <= 3:
                a, b = (sums / since).tolist()
                seconds = time.time() - last_report
                worst = (loads.max(1).values / loads.mean(1)).max().item()
                self.log(step=self.step, loss=round(a, 4), draft=round(b, 4), lr=round(scale, 3), fp8=rounding, norm=round(norm.item(), 3),
                         ktok_s=round(since * args.tokens / seconds / 1000, 1), wait=round(waited, 2), max_load=round(worst, 2))
                sums.zero_()
                since, waited, last_report = 0, 0.0, time.time()
            if time.time() - last_export > args.export_minutes * 60:
                self.export()
                table, _ = self.evaluate(self.questions)
                rates = {name: round(acceptance(self.model, b, self.device), 3) for name, b in held_out.items()}
                self.log(event="eval", step=self.step, accept=rates, **{k: f"{v['correct']}/{v['total']}" for k, v in table.items()})
                last_export = last_report = time.time()
        source.close()
        self.optimiser.write_work(True)
        self.finish(held_out)
        self.log(event="done", step=self.step)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=pathlib.Path, required=True, help="folder for logs, state and the exported model")
    parser.add_argument("--template", type=pathlib.Path, default=ROOT / "models/hadal-tiny", help="config, tokenizer and eval files")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens per step")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--round-from", type=float, default=0.5, help="share of the time after which weights go through FP8")
    parser.add_argument("--export-minutes", type=float, default=4)
    parser.add_argument("--report", type=int, default=100)
    parser.add_argument("--max-steps", type=int, default=1 << 30)
    parser.add_argument("--quick", type=int, default=48, help="questions per task in evaluations during training")
    parser.add_argument("--final", type=int, help="questions per task at the end (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    Run(args).train()


if __name__ == "__main__":
    main()
