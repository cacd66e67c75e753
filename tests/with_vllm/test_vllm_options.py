"""The engine that evaluates a paper's scale, with the options that its recipe and a machine give it.

On a CPU vLLM takes ``gpu_memory_utilization`` for a share of the CPU's memory, and not at all where
VLLM_CPU_KVCACHE_SPACE is set; ``tensor_parallel_size`` is run at 1 only. With
``model_impl="transformers"`` the engine completes as well (61 of the 71 prompts as in float32), but it
rewrites transformers' classes in its process, where no transformers model can be made any more ("Current
vLLM config is not set"); so it is not among the tests.
"""

import json
import shutil

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: tests/with_vllm/run")

from colocated import free

from gdro import engines, paper_scale, study, tasks, training

GREEDY = {"temperature": 0, "top_p": 1.0, "top_k": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model tiny-s, said to be good for 8,192 tokens: vLLM refuses a length above the model's own."""
    made = tmp_path_factory.mktemp("model") / "tiny-s"
    shutil.copytree(tasks.model_path("tiny-s"), made)
    config = json.loads((made / "config.json").read_text(encoding="utf-8")) | {
        "max_position_embeddings": 8192
    }
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


def test_a_recipes_engine_completes_as_transformers_does(folder):
    machine = {"vllm_model_impl": "vllm", "vllm_tensor_parallel_size": 1}
    machine["vllm_gpu_memory_utilization"] = 0.3
    name, options, _ = paper_scale.engine(study.settings("4B", "grpo", 1, machine=machine))
    assert options["tensor_parallel_size"] == 1
    model, tokenizer = training.load(folder)
    prompts = tokenizer(list(tasks.load("tiny", split="test")["prompt"][::20]))["input_ids"]
    expected = engines.TransformersEngine(model).sample(tokenizer, prompts, 1, 28, GREEDY, 0)
    with engines.load(name, folder, enforce_eager=True, **options) as engine:
        taken = engine.llm.llm_engine.vllm_config
        found = engine.sample(tokenizer, prompts, 1, 28, GREEDY, 0)
    free()
    assert taken.model_config.max_model_len == options["max_model_len"] == 7296
    assert taken.model_config.model_impl == "vllm"
    assert taken.cache_config.gpu_memory_utilization == 0.3
    assert taken.parallel_config.tensor_parallel_size == 1
    same = sum(a == b for a, b in zip(expected, found, strict=True))
    print(f"{same} of {len(prompts)} greedy completions in bf16 are those in float32")
    assert same > 0.8 * len(prompts)  # the rest are near ties
