"""What each of two processes runs for test_vllm_two_processes.py, colocate vLLM under distributed_worker.py;
results go to ``<folder>/straddling-<rank>.pt``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import distributed_worker as worker
from colocated import VLLM, keep_weights_loadable, take_tiny_s, without_compiling


def main(folder):
    for patch in (keep_weights_loadable, without_compiling, take_tiny_s):
        patch()
    worker.run(folder, "straddling", **VLLM, rollouts=worker.ROLLOUTS, advantage_clip=1e6, max_steps=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
