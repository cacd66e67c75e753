"""Policy gradients of single prompts of a language model, and how their variance falls with the rollouts
(torch).

The gradient of a rollout group is a weighted sum of the gradients of its rollouts' log-probabilities. So
those of the distinct rollouts are computed once, and groups of any size are then drawn from them for nothing.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from gdro import advantages as adv
from gdro import checks
from gdro.theory import ADVANTAGES


@dataclass(frozen=True, eq=False)
class Pool:
    """Rollouts of one prompt, equal ones counted; drawn from with replacement it stands for the policy.

    ``prompt`` token ids; ``completions`` U lists of token ids, end of text included; ``counts`` (U,) how
    often each came up; ``rewards`` (U,).
    """

    prompt: list
    completions: list
    counts: np.ndarray
    rewards: np.ndarray

    @property
    def pass_rate(self):
        """Mean reward of a rollout."""
        return float(self.counts @ self.rewards / self.counts.sum())

    def draw(self, shape, rng):
        """Places of rollouts among the distinct ones, integers of ``shape``, drawn with replacement."""
        return rng.choice(self.counts.size, size=shape, p=self.counts / self.counts.sum())


@torch.inference_mode()
def sample_pool(model, tokenizer, row, reward_func, size, *, max_new_tokens, seed=0, temperature=1.0):
    """`Pool` of ``size`` rollouts of one prompt at ``temperature``.

    Args: ``row`` a dictionary with the prompt and what else ``reward_func`` takes by name. The global random
    state is left as it was.
    """
    checks.whole_number("size", size, low=1)
    ids = torch.tensor([tokenizer(row["prompt"])["input_ids"]], device=model.device)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_return_sequences=size,
            max_new_tokens=max_new_tokens,
            do_sample=True,
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    seen: dict = {}
    for tokens in output[:, ids.shape[1] :].tolist():
        end = tokens.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in tokens else len(tokens)
        seen[tuple(tokens[:end])] = seen.get(tuple(tokens[:end]), 0) + 1
    completions = [list(tokens) for tokens in seen]
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    columns = {name: [value] * len(texts) for name, value in row.items() if name != "prompt"}
    rewards = reward_func(completions=texts, prompts=[row["prompt"]] * len(texts), **columns)
    return Pool(ids[0].tolist(), completions, np.array(list(seen.values())), np.array(rewards, dtype=float))


def loss_gradient(model, prompts, completions, advantages):
    """Gradient (D,) of the mean of the rows' losses (6) at the policy that wrote them: ratio 1, without KL.

    Eqs. (5) to (7), Panaganti et al. 2026, by `gdro.advantages.surrogate_loss`, no departure. The rows of one
    prompt give that prompt's gradient; those of a batch the flat mean over responses, and with advantages
    times n_bar / n_i the mean over prompts. One forward and one backward pass over R rows.

    Args: ``prompts`` and ``completions`` R lists of token ids; ``advantages`` (R,). Returns float32 on the
    CPU, over all parameters that require a gradient, in the order of ``model.named_parameters()``.
    """
    ids, mask = _padded(prompts, completions, model.device)
    logps = _log_probabilities(model(input_ids=ids).logits, ids)
    values = torch.as_tensor(np.asarray(advantages), dtype=logps.dtype, device=logps.device)
    losses = adv.surrogate_loss(
        logps,
        logps.detach(),
        None,
        values,
        mask[:, 1:],
        low=0.2,
        high=0.2,
        beta=0.0,
        sequence_level=False,
        corrected_kl=False,
    )
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(losses.mean(), parameters)]).float().cpu()


def rollout_gradients(model, prompt, completions, *, chunk_size=64):
    """Gradient (U, D) of the mean log-probability per token of each completion of one prompt.

    By ``torch.func``, ``chunk_size`` completions at a time. Costs U forward and backward passes and U * D
    numbers: at 140 thousand parameters and twenty completions 11 MB, at a billion this is for a few layers
    (leave ``requires_grad`` on those). Order of D and errors as `loss_gradient`.
    """
    ids, mask = _padded([prompt] * len(completions), completions, model.device)
    named = dict(model.named_parameters())
    fixed = {name: p.detach() for name, p in named.items() if not p.requires_grad}
    free = {name: p.detach() for name, p in named.items() if p.requires_grad}

    def score(parameters, row, own):
        inputs = {"input_ids": row[None], "use_cache": False}
        logits = functional_call(model, {**fixed, **parameters}, (), inputs).logits
        return (_log_probabilities(logits, row[None])[0] * own[1:]).sum() / own.sum()

    with sdpa_kernel(SDPBackend.MATH):  # the one attention that can be vectorised over rows
        found = vmap(grad(score), in_dims=(None, 0, 0), chunk_size=chunk_size)(free, ids, mask)
    return torch.cat([found[name].reshape(len(completions), -1) for name in free], dim=1)


def _padded(prompts, completions, device):
    """Token ids (R, T), padded on the right, and which of them belong to completions."""
    width = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.long, device=device)
    mask = torch.zeros(len(prompts), width, device=device)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        length = len(prompt) + len(completion)
        ids[row, :length] = torch.tensor([*prompt, *completion], device=device)
        mask[row, len(prompt) : length] = 1
    return ids, mask


def _log_probabilities(logits, ids):
    """(R, T - 1) log-probability of each token after the first."""
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def group_advantages(rewards, kind, pass_rate):
    """Advantages (G, n) of G groups: "group", "centred" as the trainer makes them, or "baseline", r - p.

    "group" divides by the population std plus 1e-4, eq. (3); see `gdro.theory.gradient_moments`.
    """
    checks.one_of("advantage", kind, ADVANTAGES)
    if kind == "baseline":
        return rewards - pass_rate
    groups, n = rewards.shape
    flat = torch.from_numpy(rewards.reshape(-1, 1))
    scale = "group" if kind == "group" else "none"
    sizes = torch.full((groups,), n)
    values, _ = adv.advantages(flat, torch.ones(1, dtype=flat.dtype), sizes, scale=scale, std="population")
    return values.numpy().reshape(groups, n)


def variance_over_groups(pool, gram, rollouts, *, advantage="group", groups=400, rng):
    """|E g|^2 and the trace of Cov(g) of a prompt's gradient g = (1 / n) sum_j A_j psi_j over drawn groups.

    Args: ``gram`` (U, U) inner products of the rows of `rollout_gradients`; ``rollouts`` n >= 1; ``groups``
    G >= 2 drawn from ``pool`` with the Generator ``rng``. Both estimates are unbiased over the draws.
    """
    n = checks.whole_number("rollouts", rollouts, low=1)
    checks.whole_number("groups", groups, low=2)
    drawn = pool.draw((groups, n), rng)
    values = group_advantages(pool.rewards[drawn], advantage, pool.pass_rate)
    cells = drawn + pool.counts.size * np.arange(groups)[:, None]
    shape = (groups, pool.counts.size)
    weights = np.bincount(cells.ravel(), values.ravel() / n, minlength=shape[0] * shape[1]).reshape(shape)
    squares = ((weights @ gram) * weights).sum(axis=1).mean()
    mean = weights.mean(axis=0)
    variance = (squares - mean @ gram @ mean) * groups / (groups - 1)
    return float(squares - variance), float(variance)


def measure_variance(model, pools, rollouts, *, kinds=ADVANTAGES, groups=400, seed=0):
    """Variance of the gradient of every prompt, for every number of rollouts and every kind of advantage.

    Args: ``pools`` P of them; ``rollouts`` numbers n to try. Returns a frame with prompt (place in
    ``pools``), pass_rate, distinct (rollouts in the pool), advantage, rollouts, squared_mean and variance.
    Costs `rollout_gradients` once a prompt; the groups are drawn in NumPy.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for number, pool in enumerate(pools):
        psi = rollout_gradients(model, pool.prompt, pool.completions).double()
        gram = (psi @ psi.T).cpu().numpy()
        for kind in kinds:
            for n in rollouts:
                found = variance_over_groups(pool, gram, n, advantage=kind, groups=groups, rng=rng)
                rows.append((number, pool.pass_rate, pool.counts.size, kind, n, *found))
    names = ("prompt", "pass_rate", "distinct", "advantage", "rollouts", "squared_mean", "variance")
    return pd.DataFrame(rows, columns=names)
