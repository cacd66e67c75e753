"""GDROTrainer: TRL's GRPOTrainer under a controller that plans rollouts and weights, and learns from the
outcomes."""

import contextlib
import dataclasses
import math

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import nn
from trl import GRPOConfig
from trl.trainer.utils import get_config_model_id

from gdro import advantages as adv
from gdro import rows as data_rows
from gdro.config import GDROConfig
from gdro.controller import Controller
from gdro.cycle import RAW, SLOT, Cycle
from gdro.evaluation import prompt_ids
from gdro.finite_rewards import finite_or_none
from gdro.resume import ResumableGRPOTrainer


class GDROTrainer(ResumableGRPOTrainer):
    """GRPO with Prompt-GDRO weights and Rollout-GDRO budgets, sections 3.1 to 3.3, Panaganti et al. 2026.

    A cycle is one round of plan, generate, optimise, observe. The generation batch holds P prompts and P *
    n_bar rows; the i-th prompt gets ``plan.rollouts[i]`` consecutive ones, the number of rows stays.
    Advantages are normalised in the rollout group, clipped, multiplied by n_bar / n_i
    (``rollout_weighting="per_prompt"``) and by the prompt's weight, eq. (16). After the last micro-batch of a
    cycle, before logs and checkpoints, the controller observes it. With both adversaries off (and no
    ``advantage_clip``, std "sample") the parent's computation is untouched, bit for bit; the classifier still
    observes and logs.

    Departures from the paper: its mean within a prompt, eq. (7), holds for ``loss_type="grpo"`` (the paper
    preset) and per_prompt weighting; other loss types weigh tokens their own way; the KL term stays per
    response. The signal "surrogate" is the row's loss (6) from the log-probabilities that the loss itself
    computes, with the advantage before n_bar / n_i and the weight, averaged over the row's passes; TRL's
    other modifiers of the loss (two-sided clip, masks, vLLM ratios) do not enter it. A prompt of which every
    reward is None is no visit.

    Args: as ``GRPOTrainer``, with ``args`` a `GDROConfig`. Prompts are told apart by row, or by a column
    ``prompt_id``. ``controller`` (None for an IterableDataset, or an environment's own data, which need both
    adversaries off), ``total_rollouts``, ``total_completion_tokens``: counts over all processes.

    Errors: ``ValueError`` or ``TypeError`` naming value and remedy: settings or data that do not fit, before
    training; a reward that is NaN or infinite (return None for "not scored"), when it is returned.
    """

    num_generations: int
    _signature_columns: list[str]
    _tag_names = ("trl", "grpo", "gdro")
    _name = "GDRO"

    controller: Controller | None
    _cycle: Cycle | None
    _recorded: list | None

    def __init__(
        self, model, reward_funcs=None, args: GDROConfig | None = None, train_dataset=None, *rest, **kwargs
    ):
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = GDROConfig(f"{name.split('/')[-1]}-GDRO")
        if not isinstance(args, GDROConfig):
            raise TypeError(
                f"args must be a GDROConfig, got {type(args).__name__}; its fields go on as they are"
            )
        self.controller, self._cycle, self._recorded = None, None, None
        self.total_rollouts, self.total_completion_tokens, self._generated_tokens = 0, 0, 0
        if isinstance(train_dataset, Dataset):
            train_dataset = self._adopt(train_dataset, args)
        elif not args.plain:
            raise ValueError(
                f"prompt_gdro={args.prompt_gdro}, rollout_gdro={args.rollout_gdro}, "
                f"advantage_clip={args.advantage_clip}, advantage_std={args.advantage_std!r} need a "
                "map-style datasets.Dataset, whose prompts come back and can be told apart; got "
                f"{type(train_dataset).__name__}. Load it whole, or leave these at their defaults"
            )
        super().__init__(model, reward_funcs, args, train_dataset, *rest, **kwargs)
        if self.controller is not None:
            self._refuse_long_prompts(train_dataset)
        if args.success_reward is not None and args.success_reward not in self.reward_func_names:
            raise ValueError(
                f"success_reward {args.success_reward!r} is no reward function; "
                f"they are {', '.join(self.reward_func_names)}"
            )
        for at, name in enumerate(self.reward_func_names):
            if not isinstance(self.reward_funcs[at], nn.Module):
                self.reward_funcs[at] = finite_or_none(self.reward_funcs[at], name)

    def _adopt(self, dataset, args):
        """Number the prompts of ``dataset`` and make the controller for them."""
        if "prompt" not in dataset.column_names:
            raise ValueError(
                f"the data set has no column 'prompt', only {sorted(dataset.column_names)}; "
                "rename the one that holds the prompts"
            )
        data_rows.refuse_empty_prompts(dataset)
        prompts = args.generation_batch_size // args.num_generations
        if len(dataset) < prompts:
            raise ValueError(
                f"the data set has {len(dataset)} rows, one generation takes {prompts} prompts "
                f"(generation_batch_size {args.generation_batch_size} / num_generations "
                f"{args.num_generations}); add rows, or lower the batch"
            )
        self._prompt_of_row = data_rows.prompt_numbers(dataset)
        bins = None
        if args.bin_column is not None:
            bins = data_rows.fixed_bins(dataset, args.bin_column, self._prompt_of_row)
        self.controller = args.build_controller(
            int(self._prompt_of_row.max()) + 1, bins=bins, data_fingerprint=data_rows.fingerprint(dataset)
        )
        return data_rows.with_rows(dataset)

    def _refuse_long_prompts(self, dataset):
        """A token takes a byte or more, so that only prompts of many bytes are counted."""
        limit = data_rows.positions(self.model)
        for row, prompt in enumerate(dataset["prompt"] if limit is not None else ()):
            if len(str(prompt).encode(errors="replace")) >= limit:
                named = {"prompt": prompt, data_rows.PROMPT_ID: f"of row {row}"}
                prompt_ids(self.processing_class, [named], limit)

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        if data_rows.ROW not in self._signature_columns:
            self._signature_columns = [*self._signature_columns, data_rows.ROW]

    # generation

    def _generate_and_score_completions(self, inputs):
        if self.controller is None or not self.model.training:
            return super()._generate_and_score_completions(inputs)
        numbers, inputs = self._take_rows(inputs)
        plan = self.controller.plan(self._prompt_of_row[numbers])
        self._check_same_everywhere(plan)
        if self.args.plain:
            output = super()._generate_and_score_completions(inputs)
            raw = output["advantages"]
        else:
            inputs = self._repacked(inputs, plan)
            with self._ungrouped():
                output = super()._generate_and_score_completions(inputs)
            raw, output["advantages"] = self._advantages(plan, len(inputs))
        self._open_cycle(plan, output, raw)
        return output

    def _take_rows(self, inputs):
        """(P,) rows of the data set in this generation, of all processes; the inputs without that column."""
        local = torch.tensor([example[data_rows.ROW] for example in inputs], device=self.accelerator.device)
        rows = self.accelerator.gather(local).cpu().numpy().reshape(-1, self.num_generations)
        if (rows != rows[:, :1]).any():
            raise RuntimeError(
                f"the sampler gave groups of mixed rows {rows[:2].tolist()}, not {self.num_generations} of "
                "each; do not override _get_train_sampler with another order"
            )
        return rows[:, 0], [
            {key: example[key] for key in example if key != data_rows.ROW} for example in inputs
        ]

    def _check_same_everywhere(self, plan):
        if self.accelerator.num_processes == 1:
            return
        own = torch.tensor(
            np.stack([plan.rollouts, plan.weights]), dtype=torch.float64, device=self.accelerator.device
        )
        every = self.accelerator.gather(own.unsqueeze(0))
        if not bool((every == every[0]).all()):
            raise RuntimeError(
                f"the processes made different plans in cycle {plan.cycle}; "
                "run them on one kind of machine, with the same versions, seeds and data"
            )

    def _repacked(self, inputs, plan):
        """This process's inputs with ``plan.rollouts[i]`` rows for the i-th prompt of the whole generation
        batch."""
        if (plan.rollouts == self.num_generations).all():
            return inputs
        everyone = gather_object(inputs) if self.accelerator.num_processes > 1 else inputs
        prompts = everyone[:: self.num_generations]
        index = np.repeat(np.arange(len(prompts)), plan.rollouts)[self._own_rows(len(inputs))]
        return [dict(prompts[at]) for at in index]

    def _own_rows(self, count):
        first = self.accelerator.process_index * count
        return slice(first, first + count)

    @contextlib.contextmanager
    def _ungrouped(self):
        """Let the parent treat every row as a prompt of its own, so that rollout groups may have any size."""
        kept = self.num_generations
        self.num_generations = 1
        try:
            yield
        finally:
            self.num_generations = kept

    def _raw_advantages(self, scores, sizes):
        """(R,) advantages of all rows, normalised in rollout groups of ``sizes`` and clipped; mends what the
        parent logged."""
        values, spread = adv.advantages(
            scores,
            self.reward_weights,
            sizes,
            scale=self.scale_rewards,
            aggregation=self.multi_objective_aggregation,
            std=self.args.advantage_std,
        )
        flat = torch.isclose(spread, torch.zeros_like(spread)).float().mean().item()
        self._metrics["train"]["frac_reward_zero_std"][-1] = flat
        return adv.clipped(values, self.args.advantage_clip)

    def _advantages(self, plan, count):
        """This process's advantages, before and after n_bar / n_i and the weights."""
        sizes = torch.as_tensor(plan.rollouts.copy(), device=self.accelerator.device)
        raw = self._raw_advantages(self._scores, sizes)
        factors = torch.as_tensor(plan.weights.copy(), device=raw.device)
        if self.args.rollout_weighting == "per_prompt":
            final = raw * (self.num_generations / sizes).to(raw.dtype).repeat_interleave(sizes)
        else:
            final = raw
        final = final * factors.to(raw.dtype).repeat_interleave(sizes)
        self._logs["advantages"].extend(final.tolist())
        own = self._own_rows(count)
        return raw[own], final[own]

    def _open_cycle(self, plan, output, raw):
        count = len(raw)
        own = self._own_rows(count)
        device = self.accelerator.device
        output[SLOT] = torch.arange(own.start, own.stop, device=device)
        if self.args.signal == "surrogate":
            output[RAW] = raw.clone()
        rewards, correct = self._outcomes()
        tokens = int(self.accelerator.gather(torch.tensor([self._generated_tokens], device=device)).sum())
        self._generated_tokens = 0
        self.total_rollouts += len(rewards)
        self.total_completion_tokens += tokens
        self._cycle = Cycle(
            plan=plan,
            rewards=rewards,
            correct=correct,
            tokens=tokens,
            first=own.start,
            loss_sum=torch.zeros(count, device=device),
            passes=torch.zeros(count, dtype=torch.long, device=device),
        )

    def _outcomes(self):
        """(R,) rewards, NaN where not a rollout, and whether each was right."""
        rewards = adv.total_reward(self._scores, self.reward_weights)
        success = rewards
        if self.args.success_reward is not None:
            success = self._scores[:, self.reward_func_names.index(self.args.success_reward)]
            rewards = torch.where(torch.isnan(success), success, rewards)
        return rewards.double().cpu().numpy(), (success > self.args.success_threshold).cpu().numpy()

    def _generate(self, prompts):
        result = super()._generate(prompts)
        if self.model.training:
            self._generated_tokens += sum(len(ids) for ids in result[1])
        return result

    def _calculate_rewards(self, inputs, *args):
        scores = super()._calculate_rewards(inputs, *args)
        for at, name in enumerate(self.reward_func_names):
            bad = ~torch.isfinite(scores[:, at]) & torch.tensor(isinstance(self.reward_funcs[at], nn.Module))
            if bool(bad.any()):
                raise ValueError(
                    f"the reward model {name!r} gave {scores[bad, at][0].item()}; "
                    "rewards must be finite numbers"
                )
        if self.model.training:
            self._scores = scores
        return scores

    # the loss, and the end of a cycle

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._recorded is not None:
            self._recorded.append(result[0].detach())
        return result

    def _compute_loss(self, model, inputs):
        if self._cycle is None or self.args.signal != "surrogate" or not self.model.training:
            return super()._compute_loss(model, inputs)
        self._recorded = []
        try:
            loss = super()._compute_loss(model, inputs)
            logps = self._recorded[0]
        finally:
            self._recorded = None
        self._cycle.add_losses(inputs[SLOT], self._surrogate(inputs, logps))
        return loss

    def _surrogate(self, inputs, logps):
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        old = inputs.get("old_per_token_logps")
        return adv.surrogate_loss(
            logps,
            logps if old is None else old,
            inputs.get("ref_per_token_logps"),
            inputs[RAW],
            mask,
            low=self.epsilon_low,
            high=self.epsilon_high,
            beta=self.beta,
            sequence_level=self.importance_sampling_level == "sequence",
            corrected_kl=self.args.use_bias_correction_kl,
        )

    def training_step(self, *args, **kwargs):
        """As the parent's; the last micro-batch of a cycle lets the controller observe it."""
        loss = super().training_step(*args, **kwargs)
        if self._cycle is not None and self._step % self.args.cycle_length == 0:
            self._close_cycle()
        return loss

    def _close_cycle(self):
        cycle, self._cycle = self._cycle, None
        assert cycle is not None  # which only a controller's plan opens
        assert self.controller is not None
        losses = None
        if self.args.signal == "surrogate":
            losses = self.accelerator.gather(cycle.mean_losses()).double().cpu().numpy()
        self.controller.observe(cycle.plan, cycle.prompt_index, cycle.rewards, losses, cycle.correct)
        metrics = self._metrics["train"]
        for name, value in self.controller.metrics().items():
            if not math.isnan(value):
                metrics[name].append(value)
        metrics["gdro/completion_tokens"].append(cycle.tokens)
        metrics["gdro/total_completion_tokens"] = [self.total_completion_tokens]
        metrics["gdro/total_rollouts"] = [self.total_rollouts]

    # checkpoints

    def _settings(self):
        parent = {option.name for option in dataclasses.fields(GRPOConfig)}
        own = [option.name for option in dataclasses.fields(GDROConfig) if option.name not in parent]
        return super()._settings() | {name: getattr(self.args, name) for name in own if name != "preset"}

    def _shared_state(self):
        return super()._shared_state() | {
            "controller": None if self.controller is None else self.controller.state_dict(),
            "total_rollouts": self.total_rollouts,
            "total_completion_tokens": self.total_completion_tokens,
        }

    def _load_shared_state(self, state):
        super()._load_shared_state(state)
        if (state["controller"] is None) != (self.controller is None):
            here, saved = ("has none", "one") if self.controller is None else ("has one", "none")
            raise ValueError(
                f"the checkpoint was saved with {saved} controller, this trainer {here}; "
                "use the same kind of data set"
            )
        if self.controller is not None:
            self.controller.load_state_dict(state["controller"])
        self.total_rollouts = state["total_rollouts"]
        self.total_completion_tokens = state["total_completion_tokens"]

    def _rank_state(self):
        return super()._rank_state() | {"cycle": None if self._cycle is None else self._cycle.state()}

    def _load_rank_state(self, state):
        super()._load_rank_state(state)
        self._cycle = (
            None if state["cycle"] is None else Cycle.from_state(state["cycle"], self.accelerator.device)
        )
