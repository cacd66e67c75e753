"""Files beside TRL's checkpoint: round trip, completeness, refusals."""

import json

import numpy as np
import pytest
import tiny_model as tiny
from safetensors.numpy import load_file
from trl import GRPOTrainer

from gdro import checkpoints

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}


def test_a_state_survives_writing_and_reading(tmp_path):
    state = {
        "arrays": [
            np.arange(6, dtype=np.uint8).reshape(2, 3),
            np.array([np.nan, 1.5]),
            np.zeros(0, dtype=bool),
        ],
        "array": np.array(3.0),
        "transposed": np.arange(6).reshape(2, 3).T,
        "plain": {"number": np.float64(0.1), "none": None, "nan": float("nan"), "text": "a/b", "yes": True},
    }
    checkpoints.write_state(tmp_path, "state", state)
    read = checkpoints.read_state(tmp_path, "state")
    for own, other in zip(state["arrays"], read["arrays"], strict=True):
        np.testing.assert_array_equal(own, other)
        assert own.dtype == other.dtype
    np.testing.assert_array_equal(read["transposed"], state["transposed"])
    assert read["array"].shape == ()
    assert read["plain"]["number"] == 0.1
    assert read["plain"]["nan"] != read["plain"]["nan"]
    assert {key: read["plain"][key] for key in ("none", "text", "yes")} == {
        "none": None,
        "text": "a/b",
        "yes": True,
    }


@pytest.mark.parametrize(
    ("value", "where"), [({1, 2}, "a set"), ({"deep": [object()]}, r"deep\[0\] is a object")]
)
def test_what_cannot_be_saved_is_named(tmp_path, value, where):
    with pytest.raises(TypeError, match=where):
        checkpoints.write_state(tmp_path, "state", value)


def complete(root, step):
    folder = root / f"checkpoint-{step}"
    checkpoints.write_state(folder, checkpoints.STATE, {"step": step})
    checkpoints.write_marker(folder, step)
    return folder


def test_the_newest_complete_checkpoint_is_taken_by_number_and_torn_ones_are_named(tmp_path, caplog):
    for step in (2, 9, 10):
        complete(tmp_path, step)
    (tmp_path / "checkpoint-11").mkdir()
    checkpoints.remove_marker(tmp_path / "checkpoint-10")
    (tmp_path / "checkpoint-x").mkdir()
    assert checkpoints.latest_complete(tmp_path) == str(tmp_path / "checkpoint-9")
    assert "checkpoint-10: it has no gdro_complete.json" in caplog.text
    assert "checkpoint-11" in caplog.text


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "gdro_state.json").unlink(), "gdro_state.json is missing"),
        (lambda folder: (folder / "gdro_state.json").write_text("{}"), "has 2 bytes"),
        (lambda folder: (folder / "gdro_complete.json").write_text('{"fil'), "is not whole"),
    ],
)
def test_a_damaged_checkpoint_is_not_complete(tmp_path, damage, reason):
    folder = complete(tmp_path, 3)
    assert checkpoints.why_incomplete(folder) is None
    damage(folder)
    assert reason in checkpoints.why_incomplete(folder)
    assert checkpoints.latest_complete(tmp_path) is None


@pytest.mark.parametrize(("suffix", "content"), [("json", b'{"sch'), ("safetensors", b"\xff" * 40)])
def test_damaged_files_are_named_with_the_way_out(tmp_path, suffix, content):
    checkpoints.write_state(tmp_path, "gdro_state", {"weights": np.ones(2)})
    (tmp_path / f"gdro_state.{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=r"gdro_state is damaged \(.*latest_complete finds it"):
        checkpoints.read_state(tmp_path, "gdro_state")


SAVED = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}


def test_a_checkpoint_of_another_version_is_neither_passed_over_nor_removed(tmp_path):
    tiny.train(tmp_path, max_steps=3, **SAVED)
    newest, before = tmp_path / "checkpoint-3", tmp_path / "checkpoint-2"
    marker = json.loads((newest / checkpoints.MARKER).read_text())
    (newest / checkpoints.MARKER).write_text(json.dumps(marker | {"schema": 2}))
    was = {path: path.read_bytes() for path in newest.rglob("*") if path.is_file()}
    refused = r"checkpoint-3 has schema 2, this version reads 1; .*or move checkpoint-3 away to go on without"
    with pytest.raises(checkpoints.OtherVersionError, match=refused):
        checkpoints.latest_complete(tmp_path)
    with pytest.raises(ValueError, match=refused):
        tiny.make(tmp_path, max_steps=4, **SAVED).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=refused):
        tiny.make(tmp_path, max_steps=4, **SAVED).train(resume_from_checkpoint=str(newest))
    assert checkpoints.torn_folders(tmp_path) == {}  # and so none that a save would remove
    assert {path: path.read_bytes() for path in was} == was
    newest.rename(tmp_path / "elsewhere")
    assert checkpoints.latest_complete(tmp_path) == str(before)


def test_what_is_written_here_is_json_and_safetensors(tmp_path):
    trainer = tiny.train(tmp_path, **SAVING, steps_per_generation=2)
    folder = tmp_path / "checkpoint-3"
    own = sorted(path.name for path in folder.glob("gdro_*"))
    stems = ("gdro_rank_0", "gdro_state")
    assert own == sorted(
        ["gdro_complete.json", *(stem + end for stem in stems for end in (".json", ".safetensors"))]
    )
    assert json.loads((folder / "gdro_complete.json").read_text())["files"].keys() >= {"model.safetensors"}
    for stem in stems:
        json.loads((folder / f"{stem}.json").read_text())
        load_file(folder / f"{stem}.safetensors")
    assert (
        len(load_file(folder / "gdro_rank_0.safetensors")) > 10
    )  # the buffered generations of the open cycle
    assert trainer._step == 3


def test_the_state_is_written_before_the_parent_and_the_marker_after_rotation(tmp_path, monkeypatch):
    trainer = tiny.make(tmp_path, **SAVING, save_total_limit=2)
    seen = []
    parent = GRPOTrainer._save_checkpoint

    def watched(self, model, trial):
        folder = tmp_path / f"checkpoint-{self.state.global_step}"
        before = {path.name for path in folder.iterdir()}
        parent(self, model, trial)
        kept = [path.name for path in checkpoints.checkpoint_folders(tmp_path)]
        whole = [
            path.name
            for path in checkpoints.checkpoint_folders(tmp_path)
            if not checkpoints.why_incomplete(path)
        ]
        seen.append((before, kept, whole))

    monkeypatch.setattr(GRPOTrainer, "_save_checkpoint", watched)
    trainer.train()
    assert all({"gdro_state.json", "gdro_rank_0.json"} <= before for before, _, _ in seen)
    assert seen[2][1:] == (["checkpoint-2", "checkpoint-3"], ["checkpoint-2"])
    assert checkpoints.latest_complete(tmp_path) == str(tmp_path / "checkpoint-3")


def test_a_limit_of_one_checkpoint_is_raised_to_two(tmp_path, caplog):
    trainer = tiny.train(tmp_path, **SAVING, save_total_limit=1)
    assert trainer.args.save_total_limit == 2
    assert "save_total_limit=1 raised to 2" in caplog.text
    assert len(checkpoints.checkpoint_folders(tmp_path)) == 2


def assert_refused(folder, match, source, **changes):
    """Resuming from ``source`` is refused before anything changed."""
    trainer = tiny.make(folder, **(SAVING | changes))
    state = trainer.controller.state_dict()
    with pytest.raises(ValueError, match=match):
        trainer.train(resume_from_checkpoint=source)
    assert trainer.state.global_step == 0
    assert trainer._step == 0
    assert state.keys() == trainer.controller.state_dict().keys()
    assert trainer.controller.cycle == 0


def test_resuming_from_plain_trl_is_refused(tmp_path):
    tiny.train(tmp_path / "trl", trainer=GRPOTrainer, **SAVING)
    assert_refused(tmp_path / "own", "has no gdro_state.json", str(tmp_path / "trl" / "checkpoint-3"))
    assert_refused(tmp_path / "trl", "no complete checkpoint", True)


def test_resuming_under_other_settings_names_both_sides(tmp_path):
    tiny.train(tmp_path / "run", **SAVING, prompt_gdro=True)
    source = str(tmp_path / "run" / "checkpoint-3")
    assert_refused(tmp_path, "prompt_gdro: saved True, here False", source)
    assert_refused(
        tmp_path, "prompt_step_size: saved 0.65, here 0.5", source, prompt_gdro=True, prompt_step_size=0.5
    )
    assert_refused(tmp_path, "num_generations: saved 4, here 2", source, prompt_gdro=True, num_generations=2)


def test_resuming_on_another_data_set_names_both_sides(tmp_path):
    tiny.train(tmp_path / "run", **SAVING)
    source = str(tmp_path / "run" / "checkpoint-3")
    assert_refused(tmp_path, "num_prompts 8, here 6", source, dataset=tiny.prompts(6))
    assert_refused(
        tmp_path, "another data set: saved data_fingerprint", source, dataset=tiny.prompts(8, extra=[1] * 8)
    )


def test_resuming_from_a_torn_checkpoint_or_a_model_is_refused(tmp_path):
    tiny.train(tmp_path / "run", **SAVING)
    checkpoints.remove_marker(tmp_path / "run" / "checkpoint-3")
    assert_refused(
        tmp_path,
        "is not a complete checkpoint: it has no gdro_complete",
        str(tmp_path / "run" / "checkpoint-3"),
    )
    tiny.train(tmp_path / "model", **SAVING, save_only_model=True)
    assert_refused(
        tmp_path, "save_only_model=True", str(tmp_path / "model" / "checkpoint-3"), save_only_model=True
    )
