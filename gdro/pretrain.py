"""Makes the tiny base models: models that can work step by step but seldom do.

Phase 1 teaches how to work, not when: nearly all answers are worked, what opens them is not learned, and half
of them stand under a random family's mark, so that the opening decides which family's rule is worked.
Phase 2 teaches to guess: a share of worked answers that falls from family to family and with the number of
terms, the rest direct. What is left is a policy whose pass rate lies anywhere between guessing and working,
and whose skills have to be reinforced one by one.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gdro import checks, tasks

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
LEVELS = tasks.TRAIN_LEVELS + tasks.OUTSIDE_LEVELS  # numbers of terms that the base models have met
PHASES = ("work", "guess")
FOREIGN = 0.5  # share of phase 1 shown under the mark of a random family
ALPHABET = (
    "0123456789+-=#" + tasks.TERM_LETTERS + "".join(f.mark + f.worked + f.direct for f in tasks.FAMILIES)
)


@dataclass(frozen=True)
class Recipe:
    """How one tiny model is made: its size, the two phases and the shares of worked answers they leave.

    ``worked_shares`` has one share a family (for the shortest chains); each further term multiplies it by
    ``share_decay``. Rates are AdamW's peak learning rates, batches are in answers.
    """

    layers: int
    width: int
    heads: int
    worked_shares: tuple[float, ...]
    share_decay: float = 0.9
    work_steps: int = 1000
    work_batch: int = 48
    work_rate: float = 6e-3
    work_direct: float = 0.03
    guess_steps: int = 150
    guess_batch: int = 96
    guess_rate: float = 1.5e-3
    seed: int = 0

    def __post_init__(self):
        if len(self.worked_shares) != len(tasks.FAMILIES):
            raise ValueError(
                f"worked_shares has {len(self.worked_shares)} entries: "
                f"give {len(tasks.FAMILIES)}, one a family"
            )
        if not all(0 <= s <= 1 for s in (*self.worked_shares, self.share_decay, self.work_direct)):
            raise ValueError(
                f"worked_shares {self.worked_shares}, share_decay {self.share_decay} and work_direct "
                f"{self.work_direct} must lie in [0, 1]"
            )

        for name in ("layers", "width", "heads", "work_steps", "work_batch", "guess_steps", "guess_batch"):
            checks.whole_number(name, getattr(self, name), low=1)
        for name in ("work_rate", "guess_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")

    def share(self, problem: tasks.Problem) -> float:
        """Share of worked answers that phase 2 shows for this problem."""
        family = tasks.FAMILIES.index(problem.family)
        return self.worked_shares[family] * self.share_decay ** (len(problem.terms) - min(LEVELS))


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


def encode(tokenizer, prompts, completions, *, opening=True) -> dict[str, torch.Tensor]:
    """Token ids, mask and labels (-100 on the prompt) of prompts with their answers, padded on the right.

    With ``opening`` False the first character of each answer, which chooses between working and guessing, is
    not learned either.
    """
    heads = tokenizer(list(prompts))["input_ids"]
    tails = tokenizer(list(completions), add_special_tokens=False)["input_ids"]
    rows = [h + t + [tokenizer.eos_token_id] for h, t in zip(heads, tails, strict=True)]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, (head, row) in enumerate(zip(heads, rows, strict=True)):
        learned = len(head) + (not opening)
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, learned : len(row)] = torch.tensor(row[learned:])
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def draw_batch(size: int, worked_share, rng: np.random.Generator, *, withheld=frozenset(), foreign=0.0):
    """Draw ``size`` problems (families and levels uniform, ``withheld`` prompts never) and their answers.

    ``worked_share`` maps a problem to the probability that its answer is worked. ``foreign`` is the share of
    prompts that carry the mark of a family drawn at random while the answer stays: the opening of an answer,
    not the mark, then says which factor it applies. Returns prompts, completions.
    """
    prompts, completions = [], []
    while len(prompts) < size:
        family = tasks.FAMILIES[int(rng.integers(len(tasks.FAMILIES)))]
        problem = tasks.random_problem(family, LEVELS[int(rng.integers(len(LEVELS)))], rng)
        prompt = problem.prompt
        if foreign and rng.random() < foreign:
            prompt = tasks.FAMILIES[int(rng.integers(len(tasks.FAMILIES)))].mark + prompt[1:]
        if prompt in withheld:
            continue
        prompts.append(prompt)
        completions.append(problem.completion(bool(rng.random() < worked_share(problem))))
    return prompts, completions


def supervise(
    model,
    tokenizer,
    steps,
    peak_rate,
    worked_share,
    *,
    batch,
    rng,
    opening=True,
    withheld=frozenset(),
    foreign=0.0,
    report=None,
):
    """Train on drawn answers with AdamW: 5 % linear warm-up, then a cosine to a twentieth of the peak rate.

    ``report(step, loss)`` is called every 50 steps. Returns the losses as a list.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.01, betas=(0.9, 0.98))
    warmup = max(1, steps // 20)
    losses = []
    model.train()
    for step in range(steps):
        progress = max(0, step - warmup) / max(1, steps - warmup)
        factor = min((step + 1) / warmup, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        optimiser.param_groups[0]["lr"] = peak_rate * factor
        rows = encode(
            tokenizer,
            *draw_batch(batch, worked_share, rng, withheld=withheld, foreign=foreign),
            opening=opening,
        )
        loss = model(**rows).loss
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
    return frozenset(row["prompt"] for rows in tasks.make_tiny_prompts().values() for row in rows)


def make_model(recipe: Recipe, report=None):
    """Make one base model: phase 1 (learn to work), then phase 2 (learn to guess).

    ``report(phase, step, loss)`` is called every 50 steps. Returns the model, its tokenizer and a frame of
    the losses (phase, step, loss). The same recipe, thread count and version of torch give the same model.
    """
    tokenizer = make_tokenizer()
    model = build_model(recipe, tokenizer)
    losses = [teach(model, tokenizer, recipe, phase, report) for phase in PHASES]
    return model, tokenizer, pd.concat(losses, ignore_index=True)


def teach(model, tokenizer, recipe: Recipe, phase: str, report=None) -> pd.DataFrame:
    """Train ``model`` in place through one phase, "work" or "guess"; returns (phase, step, loss) rows."""
    if phase == "work":
        steps, rate, batch = recipe.work_steps, recipe.work_rate, recipe.work_batch
        share = 1 - recipe.work_direct
    elif phase == "guess":
        steps, rate, batch = recipe.guess_steps, recipe.guess_rate, recipe.guess_batch
        share = recipe.share
    else:
        raise ValueError(f"unknown phase {phase!r}: the known ones are {', '.join(PHASES)}")
    losses = supervise(
        model,
        tokenizer,
        steps,
        rate,
        share if callable(share) else lambda problem: share,
        batch=batch,
        rng=np.random.default_rng([recipe.seed, PHASES.index(phase)]),
        opening=phase == "guess",
        withheld=withheld_prompts(),
        foreign=FOREIGN if phase == "work" else 0.0,
        report=None if report is None else partial(report, phase),
    )
    return pd.DataFrame({"phase": phase, "step": np.arange(1, steps + 1), "loss": losses})
