"""Training does not go on from a checkpoint with a flipped bit, and does from the one before it."""

import shutil

import pytest
import tiny_model as tiny
from run_store import snapshot
from test_damage import flipped

from gdro import checkpoints


@pytest.mark.faults
def test_a_damaged_checkpoint_is_refused_whichever_file_it_is(tmp_path):
    """Each file of a real checkpoint in turn, optimiser and random state too, with one bit flipped."""
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    whole = tiny.train(tmp_path, **saving)
    newest = tmp_path / "checkpoint-3"
    for path in sorted(p for p in newest.rglob("*") if p.is_file() and p.name != checkpoints.MARKER):
        data = path.read_bytes()
        path.write_bytes(flipped(data, 4 * len(data)))
        before = snapshot(tmp_path)
        trainer = tiny.make(tmp_path, **saving)
        with pytest.raises(ValueError, match=r"damaged|remove checkpoint-3 and resume again"):
            trainer.train(resume_from_checkpoint=True)
        assert trainer.state.global_step == 0
        assert snapshot(tmp_path) == before
        path.write_bytes(data)
    shutil.rmtree(newest)
    resumed = tiny.make(tmp_path, **saving)
    resumed.train(resume_from_checkpoint=True)
    tiny.assert_same_parameters(tiny.parameters(whole), tiny.parameters(resumed))
