"""Training through vLLM in the trainer's own process: what its CPU build needs, and a small run of tiny-s."""

import gc
import os

import tiny_model as tiny

from gdro import tasks

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 64}


def keep_weights_loadable(setattr=setattr):
    """The CPU build packs weights and drops the parameters that TRL loads the policy's into."""
    import vllm._custom_ops
    import vllm.model_executor.layers.utils

    setattr(vllm._custom_ops, "_supports_onednn", False)
    setattr(vllm.model_executor.layers.utils, "check_cpu_sgl_kernel", lambda *args: False)


def without_compiling(setattr=setattr):
    """Make TRL's engine run its model as it is written, which is ready sooner."""
    from functools import partial

    from trl.generation import vllm_generation

    setattr(vllm_generation, "LLM", partial(vllm_generation.LLM, enforce_eager=True))


def take_tiny_s(setattr=setattr):
    """Let `tiny_model` train tiny-s: its own model's heads are too small for vLLM on a CPU."""
    setattr(tiny, "model_folder", lambda: str(tasks.model_path("tiny-s")))


def free():
    """End what the last engine left in this process, so that the next trainer starts as in a new one."""
    from vllm.distributed import cleanup_dist_env_and_memory

    gc.collect()
    cleanup_dist_env_and_memory()
    for name in LAUNCHER:  # TRL sets them for vLLM; the next trainer would take them for a launcher's
        os.environ.pop(name, None)
