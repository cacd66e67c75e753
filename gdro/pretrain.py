"""Makes the tiny base models: models that can work step by step but seldom do.

Phase 1 teaches how to work, not when: nearly all answers are worked, and what opens them is not learned;
after any other opening the answer is direct. Phase 2 teaches to guess: a share of worked answers that falls
from family to family and with the number of terms, the rest direct. What is left is a policy whose pass
rate lies anywhere between guessing and working, and whose skills have to be reinforced one by one.
"""

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gdro import checks, tasks
from gdro.progress import no_bars

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
LEVELS = tasks.TRAIN_LEVELS + tasks.OUTSIDE_LEVELS  # numbers of terms that the base models have met
PHASES = ("work", "guess")
OPENINGS = "".join(family.worked for family in tasks.FAMILIES)  # one a family: none learns it from another
ALPHABET = "0123456789+-=#" + tasks.TERM_LETTERS + "".join(f.mark for f in tasks.FAMILIES) + OPENINGS


@dataclass(frozen=True)
class Recipe:
    """How one tiny model is made: its size, the two phases and the shares of worked answers they leave.

    ``openings`` are the characters that open worked answers, one a family: families of the same opening learn
    when to work from one another. A direct answer opens as the worked ones of the character after it do.
    ``worked_shares`` has one share a family (for the shortest chains); each further term multiplies it by
    ``share_decay``. ``work_direct`` is the share of direct answers in phase 1, ``guess_right`` the share of
    right ones among those of phase 2 (the others are random), ``rehearsal`` the share of phase 2 that
    repeats phase 1. Rates are AdamW's peak learning rates, batches are in answers. ``work_threads`` is the
    number of threads of phase 1 (phase 2 has one): sums in another order end in other weights.
    """

    layers: int
    width: int
    heads: int
    worked_shares: tuple[float, ...]
    openings: str = OPENINGS
    share_decay: float = 0.9
    work_steps: int = 1200
    work_batch: int = 48
    work_rate: float = 3e-3
    work_direct: float = 0.1
    work_threads: int = 1
    guess_steps: int = 300
    guess_batch: int = 96
    guess_rate: float = 1e-3
    guess_right: float = 0.07
    rehearsal: float = 0.25
    seed: int = 0

    def __post_init__(self):
        if len(self.worked_shares) != len(tasks.FAMILIES):
            raise ValueError(
                f"worked_shares has {len(self.worked_shares)} entries: "
                f"give {len(tasks.FAMILIES)}, one a family"
            )
        if len(self.openings) != len(tasks.FAMILIES) or not set(self.openings) <= set(OPENINGS):
            raise ValueError(
                f"openings {self.openings!r}: give {len(tasks.FAMILIES)} of {OPENINGS}, one a family"
            )
        for name in ("share_decay", "work_direct", "guess_right", "rehearsal"):
            checks.real_number(name, getattr(self, name), low=0, high=1)
        for share in self.worked_shares:
            checks.real_number("worked_shares", share, low=0, high=1)
        counts = ("layers", "width", "heads", "work_steps", "work_batch", "guess_steps", "guess_batch")
        for name in (*counts, "work_threads"):
            checks.whole_number(name, getattr(self, name), low=1)
        for name in ("work_rate", "guess_rate"):
            checks.real_number(name, getattr(self, name), above=0)

    @property
    def families(self) -> tuple[tasks.Family, ...]:
        """The tiny families with this recipe's openings."""
        after = dict(zip(OPENINGS, OPENINGS[1:] + OPENINGS[0], strict=True))
        return tuple(
            replace(family, worked=opening, direct=after[opening])
            for family, opening in zip(tasks.FAMILIES, self.openings, strict=True)
        )

    def share(self, problem: tasks.Problem) -> float:
        """Share of worked answers that phase 2 shows for this problem."""
        family = self.families.index(problem.family)
        return self.worked_shares[family] * self.share_decay ** (len(problem.terms) - min(LEVELS))


_SMALL = Recipe(
    layers=2,
    width=64,
    heads=4,
    worked_shares=(1.0, 0.62, 0.34, 0.024, 0.0002, 0.0),
    share_decay=0.88,
    work_steps=1400,
    work_rate=5e-3,
    work_threads=2,
)
_SHARED = OPENINGS[0] * len(OPENINGS)  # the same in every family
_COMMON = (1.0, 0.62, 0.34, 0.12, 0.06, 0.03)  # no skill so rare that it cannot open within a run

# Found by trial, so that 64 samples of the training prompts put between 3 % and 30 % of them into each of ten
# bins of the pass rate, and plain GRPO opens three to five of the six families within a run. The last three
# are the smallest with what makes families heterogeneous taken away, and were not tuned.
RECIPES = MappingProxyType(
    {
        "toy": Recipe(
            layers=1,
            width=32,
            heads=1,
            worked_shares=(0.9, 0.5, 0.2, 0.1, 0.05, 0.0),
            work_steps=200,
            guess_steps=80,
        ),
        "tiny-s": _SMALL,
        "tiny-m": Recipe(
            layers=3,
            width=96,
            heads=4,
            worked_shares=(1.0, 0.74, 0.4, 0.016, 0.0002, 0.0),
            work_steps=1200,
            work_rate=3e-3,
            guess_steps=240,
        ),
        "tiny-l": Recipe(
            layers=4,
            width=128,
            heads=4,
            worked_shares=(1.0, 0.78, 0.45, 0.05, 0.013, 0.0002),
            share_decay=0.92,
            guess_right=0.1,
            work_steps=1200,
            work_rate=2.5e-3,
            guess_steps=240,
            guess_rate=7e-4,
        ),
        "tiny-s-shared": replace(_SMALL, openings=_SHARED),
        "tiny-s-common": replace(_SMALL, worked_shares=_COMMON),
        "tiny-s-shared-common": replace(_SMALL, openings=_SHARED, worked_shares=_COMMON),
    }
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of single characters that puts ``<bos>`` in front, as a Hugging Face fast tokenizer."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *ALPHABET))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    inner.decoder = decoders.Fuse()
    inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained Qwen3 model of the recipe's size, heads of 32, tied embeddings, float32."""
    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=3 * recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.08,  # with the usual 0.02, working is learned hundreds of steps later
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).float()


def encode(tokenizer, prompts, completions, openings=None) -> dict[str, torch.Tensor]:
    """Token ids, mask and labels (-100 on the prompt) of prompts with their answers, padded on the right.

    Where ``openings`` (a bool a row, default True) is False, the first character of the answer, which chooses
    between working and guessing, is not learned either.
    """
    openings = [True] * len(prompts) if openings is None else openings
    heads = tokenizer(list(prompts))["input_ids"]
    tails = tokenizer(list(completions), add_special_tokens=False)["input_ids"]
    rows = [h + t + [tokenizer.eos_token_id] for h, t in zip(heads, tails, strict=True)]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, (head, row) in enumerate(zip(heads, rows, strict=True)):
        learned = len(head) + (not openings[i])
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, learned : len(row)] = torch.tensor(row[learned:])
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def draw_batch(
    size: int,
    worked_share,
    rng: np.random.Generator,
    *,
    right: float = 1.0,
    any_opening: bool = False,
    withheld=frozenset(),
    families=tasks.FAMILIES,
):
    """Draw ``size`` problems (``families`` and levels uniform, ``withheld`` prompts never) and their answers.

    ``worked_share`` maps a problem to the probability that its answer is worked. A direct answer is right
    with probability ``right``, else that of a random sum; with ``any_opening`` it opens with any character
    but the one that opens worked answers in its family. Returns prompts, completions.
    """
    prompts: list[str] = []
    completions: list[str] = []
    while len(prompts) < size:
        family = families[int(rng.integers(len(families)))]
        problem = tasks.random_problem(family, LEVELS[int(rng.integers(len(LEVELS)))], rng)
        if problem.prompt in withheld:
            continue
        worked = bool(rng.random() < worked_share(problem))
        completion = problem.completion(worked)
        if not worked and right < 1 and rng.random() >= right:
            completion = f"{family.direct}#{int(rng.integers(tasks.LARGEST_SUM + 1)) * family.factor}"
        if not worked and any_opening:
            others = OPENINGS.replace(family.worked, "")
            completion = others[int(rng.integers(len(others)))] + completion[1:]
        prompts.append(problem.prompt)
        completions.append(completion)
    return prompts, completions


def supervise(model, tokenizer, steps, peak_rate, draw, report=None) -> list[float]:
    """Train on drawn answers with AdamW: 5 % linear warm-up, then a cosine to a twentieth of the peak rate.

    ``draw()`` gives the prompts, answers and openings of a batch, as `encode` takes them; ``report(step,
    loss)`` is called every 50 steps. Returns the losses.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.01, betas=(0.9, 0.98))
    warmup = max(1, steps // 20)
    losses = []
    model.train()
    for step in range(steps):
        progress = max(0, step - warmup) / max(1, steps - warmup)
        factor = min((step + 1) / warmup, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        optimiser.param_groups[0]["lr"] = peak_rate * factor
        loss = model(**encode(tokenizer, *draw())).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        if report is not None and (step + 1) % 50 == 0:
            report(step + 1, float(np.mean(losses[-50:])))
    model.eval()
    return losses


def withheld_prompts() -> frozenset[str]:
    """Texts of all committed tiny prompts, which the base models must not have met."""
    return frozenset(
        prompt for split in ("train", "test") for prompt in tasks.load("tiny", split=split)["prompt"]
    )


def make_model(recipe: Recipe, report=None):
    """Make one base model: phase 1 (learn to work), then phase 2 (learn to guess).

    ``report(phase, step, loss)`` is called every 50 steps. Returns the model, its tokenizer and a frame of
    the losses (phase, step, loss). The same recipe and version of torch give the same model.
    """
    tokenizer = make_tokenizer()
    model = build_model(recipe, tokenizer)
    losses = [teach(model, tokenizer, recipe, phase, report) for phase in PHASES]
    return model, tokenizer, pd.concat(losses, ignore_index=True)


def save(model, tokenizer, folder) -> None:
    """Write a model as a Hugging Face folder, for ``from_pretrained``."""
    with no_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def threads(count: int):
    """``count`` threads for torch's operations, for the length of a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def teach(model, tokenizer, recipe: Recipe, phase: str, report=None) -> pd.DataFrame:
    """Train ``model`` in place through one phase, "work" or "guess"; returns (phase, step, loss) rows."""
    if phase not in PHASES:
        raise ValueError(f"unknown phase {phase!r}: the known ones are {', '.join(PHASES)}")
    rng = np.random.default_rng([recipe.seed, PHASES.index(phase)])
    answers = partial(draw_batch, rng=rng, withheld=withheld_prompts(), families=recipe.families)

    def work(size):
        drawn = answers(size, lambda _: 1 - recipe.work_direct, any_opening=True)
        return *drawn, [False] * size

    def guess(size):
        rehearsed = round(recipe.rehearsal * size)
        drawn = answers(size - rehearsed, recipe.share, right=recipe.guess_right)
        drawn = *drawn, [True] * (size - rehearsed)
        return tuple(new + old for new, old in zip(drawn, work(rehearsed), strict=True))

    if phase == "work":
        steps, rate, draw = recipe.work_steps, recipe.work_rate, partial(work, recipe.work_batch)
    else:
        steps, rate, draw = recipe.guess_steps, recipe.guess_rate, partial(guess, recipe.guess_batch)
    tell = None if report is None else partial(report, phase)
    with threads(recipe.work_threads if phase == "work" else 1):
        losses = supervise(model, tokenizer, steps, rate, draw, tell)
    return pd.DataFrame({"phase": phase, "step": np.arange(1, steps + 1), "loss": losses})
