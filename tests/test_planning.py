"""The plan's arithmetic: closed forms, what scales with what, and Qwen3's published sizes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdro import planning
from gdro.planning import DEVICES, ModelShape, Plan, Workload

GPU = DEVICES["h100-80"]
SHAPE = ModelShape(
    parameters=10**9, trainable=10**9, layers=10, hidden=1000, attention=1000, cached=500, vocabulary=10**5
)
WORK = Workload(
    prompts=8,
    rollouts=4,
    generations=10,
    processes=2,
    micro_rows=1,
    prompt_tokens=100,
    max_completion=1000,
    mean_completion=500,
)


def made(shape=SHAPE, **changes) -> Plan:
    return planning.plan(shape, dataclasses.replace(WORK, **changes), GPU)


def test_memory_by_hand():
    """Float32: 4 bytes a parameter for weights, gradients and reference, 8 for Adam; 1100 tokens a row."""
    memory = made().memory
    assert {part: memory[part] for part in ("weights", "gradients", "optimiser", "reference model")} == {
        "weights": 4e9,
        "gradients": 4e9,
        "optimiser": 8e9,
        "reference model": 4e9,
    }
    assert memory["activations"] == 1100 * 1000 * (10 * 2 + 34)
    assert memory["logits"] == 1000 * 1e5 * 8
    assert memory["gathered layers"] == 0


@given(st.integers(2, 64))
def test_sharding_divides_what_it_shards(processes):
    whole, shared = made(processes=processes), made(processes=processes, sharded=True)
    for part in ("weights", "gradients", "optimiser", "reference model"):
        assert shared.memory[part] == pytest.approx(whole.memory[part] / processes)
    for part in ("activations", "logits"):
        assert shared.memory[part] == whole.memory[part]


def test_an_adapter_needs_neither_a_reference_nor_moments_of_the_rest():
    shape = dataclasses.replace(SHAPE, trainable=10**7)
    plan = made(shape, weight_bytes=2, reference=False)
    assert plan.memory["weights"] == 2e9
    assert plan.memory["optimiser"] == 8e7
    assert plan.memory["reference model"] == 0
    full = made()
    assert plan.seconds["training"] < full.seconds["training"]
    assert plan.seconds["reference log-probabilities"] == full.seconds["reference log-probabilities"]


def test_the_peak_counts_the_engine_while_it_is_awake():
    awake, asleep = made(engine_share=0.5), made(engine_share=0.5, engine_sleeps=True)
    training = sum(awake.memory.values())
    assert awake.peak == training + 40e9
    passing = sum(awake.memory[part] for part in ("gradients", "activations", "logits"))
    assert asleep.peak == max(training, training - passing + 40e9)


def test_training_seconds_by_hand():
    """Four forward passes' worth for the policy with recomputation, one each for old and reference."""
    seconds = made().seconds
    forward = 2e9 + 2 * 10 * 1000 * 600
    unit = 16 * 600 * forward / (GPU.operations * 0.35)
    assert seconds["training"] == pytest.approx(4 * unit)
    assert seconds["old log-probabilities"] == seconds["reference log-probabilities"] == pytest.approx(unit)
    assert made(checkpointing=False).seconds["training"] == pytest.approx(3 * unit)
    assert made(old_pass=False, reference=False).seconds["old log-probabilities"] == 0


def test_decoding_reads_the_weights_once_for_all_rows_under_way():
    """16 rows of 500 tokens on each GPU: 500 steps, each reading the weights and 16 caches of 600 tokens."""
    step = (2e9 + 16 * 600 * SHAPE.cache_bytes) / (GPU.bandwidth * 0.5)
    longest = 1000 * (2e9 + 600 * SHAPE.cache_bytes) / (GPU.bandwidth * 0.5)
    assert made().seconds["generation"] == pytest.approx(max(500 * step, longest))


@given(st.sampled_from(["prompts", "rollouts", "generations"]), st.integers(2, 5))
def test_tokens_and_hours_add_up(name, factor):
    plan, larger = made(), made(**{name: factor * getattr(WORK, name)})
    assert larger.tokens == factor * plan.tokens == factor * 10 * 32 * 500
    assert larger.gpu_hours >= plan.gpu_hours
    for p, generations in ((plan, 10), (larger, 10 * factor if name == "generations" else 10)):
        assert p.gpu_hours == pytest.approx(sum(p.seconds.values()) * generations * 2 / 3600)


def test_the_text_names_what_it_rests_on_and_what_does_not_fit():
    text = planning.describe(made(), SHAPE, WORK, "h100-80")
    assert "nothing was measured" in text
    assert "35% of 989e12 operations" in text
    assert "20.9 GB at the peak of 80: fits" in text
    big = dataclasses.replace(SHAPE, parameters=10**10, trainable=10**10)
    assert "DOES NOT FIT" in planning.describe(made(big), big, WORK, "h100-80")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 0}, "prompts must be at least 1, got 0"),
        ({"mean_completion": 2000}, "mean_completion must be at most 1000, got 2000"),
        ({"engine_share": 1.0}, "engine_share must be below 1, got 1.0"),
    ],
)
def test_impossible_workloads_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)
