"""Where evaluation's completions come from: transformers, or vLLM's offline engine, behind one method.

with engines.load("vllm", folder, dtype="bfloat16") as engine:
    scores = evaluate(engine, tokenizer, data, reward, max_new_tokens=4096, **engines.decoding("paper"))
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from gdro import checks
from gdro.rows import positions

DECODINGS = MappingProxyType(
    {
        "study": MappingProxyType({"temperature": 1.0, "top_p": 1.0, "top_k": 0}),
        # appendix A, Panaganti et al. 2026, which takes eight samples of every prompt
        "paper": MappingProxyType({"temperature": 0.6, "top_p": 0.8, "top_k": 20}),
    }
)


def decoding(name: str) -> dict:
    """Temperature, top_p and top_k by name: "study" is the policy itself, "paper" what the paper evaluates
    with.

    >>> decoding("paper")
    {'temperature': 0.6, 'top_p': 0.8, 'top_k': 20}
    """
    return dict(DECODINGS[checks.one_of("decoding", name, tuple(DECODINGS))])


def check_decoding(temperature, top_p, top_k, samples):
    """Raise ``ValueError`` or ``TypeError`` for values out of range, and for several samples without
    sampling."""
    checks.real_number("temperature", temperature, low=0)
    checks.real_number("top_p", top_p, above=0, high=1)
    checks.whole_number("top_k", top_k, low=0)
    if temperature == 0 and samples > 1:
        raise ValueError(
            f"temperature 0 gives one completion of a prompt {samples} times: ask for one sample, or set the "
            "temperature above 0"
        )


class Engine(ABC):
    """A model that completes prompts. ``rows``: completions of a batch that suit it, where nobody says;
    ``positions``: tokens of a prompt and its completion, None where the engine itself refuses more."""

    rows: int
    positions: int | None = None

    @classmethod
    @abstractmethod
    def load(cls, folder, **options) -> "Engine":
        """The engine on the model in ``folder``, or of the hub."""

    @abstractmethod
    def sample(self, tokenizer, prompts, samples, limit, decoding, stream) -> list[list[int]]:
        """Complete P prompts, ``samples`` times each.

        Args: ``prompts`` P lists of token ids; ``limit`` new tokens at most; ``decoding`` as `decoding` gives
        it, temperature 0 the likeliest token; ``stream`` a whole number >= 0 that decides every draw. Returns
        R = P ``samples`` lists of token ids, those of one prompt together, each up to its end of text and
        with it: the tokenizer's, or one that the model's generation config names.
        """

    @abstractmethod
    def close(self):
        """Free the model; the engine cannot sample any more."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class TransformersEngine(Engine):
    """``model.generate``, on the device where the model is; global random state and mode stay as they were.

    Equal arguments give equal completions on the same versions and thread count.
    """

    rows = 512

    def __init__(self, model):
        self.model, self.positions = model, positions(model)

    @classmethod
    def load(cls, folder, **options):
        """Options go to ``from_pretrained``."""
        return cls(AutoModelForCausalLM.from_pretrained(folder, **options))

    @torch.inference_mode()
    def sample(self, tokenizer, prompts, samples, limit, decoding, stream):
        model = self.model
        padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        padded = padded.to(model.device)
        ends = self._ends(tokenizer)
        sampling = {"do_sample": True, **decoding} if decoding["temperature"] else {"do_sample": False}
        was_training = model.training
        model.eval()
        try:
            with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
                torch.manual_seed(stream)
                output = model.generate(
                    input_ids=padded["input_ids"],
                    attention_mask=padded["attention_mask"],
                    num_return_sequences=samples,
                    max_new_tokens=limit,
                    pad_token_id=tokenizer.pad_token_id,
                    eos_token_id=ends,
                    **sampling,
                )
        finally:
            model.train(was_training)
        new = output[:, padded["input_ids"].shape[1] :]
        ended = torch.isin(new, torch.tensor(ends, device=new.device))
        lengths = torch.where(ended.any(dim=1), ended.int().argmax(dim=1) + 1, new.shape[1])
        return [row[:length].tolist() for row, length in zip(new, lengths.tolist(), strict=True)]

    def close(self):
        self.model = None

    def _ends(self, tokenizer):
        named = self.model.generation_config.eos_token_id
        named = named if isinstance(named, list) else [named]
        return sorted({tokenizer.eos_token_id, *named} - {None})


class VLLMEngine(Engine):
    """vLLM's offline engine on a model folder or hub name; every prompt has a seed of its own.

    Its numbers depend on which rows share a batch: equal arguments give nearly, not always, equal
    completions. Where no ``dtype`` is given vLLM computes a model kept in float32 in bfloat16. Needs the
    extra ``vllm``. Not run on a GPU; on a CPU with vLLM's CPU build.
    """

    rows = 1 << 16  # the engine makes batches of its own; this one is the unit of progress only

    def __init__(self, llm):
        self.llm = llm

    @classmethod
    def load(cls, folder, **options):
        """Options go to ``vllm.LLM``; raises ``ImportError`` where vLLM cannot be imported."""
        try:
            from vllm import LLM
        except ImportError as error:
            raise ImportError(
                f"the engine 'vllm' cannot be loaded ({error}): pip install 'gdro[vllm]', or take the engine "
                "'transformers'"
            ) from error
        return cls(LLM(model=str(folder), **options))

    def sample(self, tokenizer, prompts, samples, limit, decoding, stream):
        from vllm import SamplingParams

        # apart by far more than the samples of a prompt, which vLLM numbers upwards from its seed
        seeds = np.random.SeedSequence(stream).generate_state(len(prompts), np.uint64) >> 2
        wanted = [
            SamplingParams(
                n=samples,
                seed=int(seed),
                max_tokens=limit,
                stop_token_ids=[tokenizer.eos_token_id],
                detokenize=False,
                **decoding,
            )
            for seed in seeds
        ]
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], wanted, use_tqdm=False)
        return [list(completion.token_ids) for output in outputs for completion in output.outputs]

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()


ENGINES: Mapping[str, type[Engine]] = MappingProxyType(
    {"transformers": TransformersEngine, "vllm": VLLMEngine}
)


def load(name: str, folder, **options) -> Engine:
    """The engine ``name`` ("transformers" or "vllm") on the model in ``folder``, or of the hub.

    Options are those of ``from_pretrained`` or of ``vllm.LLM`` (such as dtype, and for vLLM
    gpu_memory_utilization, max_model_len, tensor_parallel_size). Unknown names raise ``ValueError`` with the
    known ones.
    """
    return ENGINES[checks.one_of("engine", name, tuple(ENGINES))].load(folder, **options)
