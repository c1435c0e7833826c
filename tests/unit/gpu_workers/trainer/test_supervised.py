"""Supervised training: dataset lines, token layout, order of examples, and a run that learns and resumes."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gpu_workers.contracts.messages import TrainJob
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models import tiny
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.trainer.attempt import TrainerAttempt, Workplace
from gpu_workers.trainer.supervised import (
    DatasetError,
    batch_indices,
    num_steps,
    read_dataset,
    tokenise,
    tokenise_all,
)
from tests.unit.gpu_workers.trainer.synthetic import make_spec
from tests.unit.gpu_workers.trainer.test_attempt import Recorder


def line(number: int) -> dict:
    return {
        "prompt": [{"role": "user", "content": f"add {number} 1"}],
        "completion": [
            {"role": "assistant", "content": f"add({number}, 1)"},
            {"role": "tool", "content": str(number + 1)},
            {"role": "assistant", "content": str(number + 1)},
        ],
    }


def dataset(count: int) -> bytes:
    return "\n".join(json.dumps(line(number)) for number in range(count)).encode()


@pytest.fixture
def layout(home: Path) -> ChatTemplate:
    return ChatTemplate(home / "models" / tiny.NAME)


def test_the_loss_covers_the_assistant_with_its_end_of_turn_only(layout: ChatTemplate):
    (example,) = read_dataset(dataset(1))
    sequence = tokenise(example, layout)
    trained = sequence.tokens[sequence.mask == 1].tolist()
    assert trained == [*layout.encode("add(0, 1)"), tiny.EOS_ID, *layout.encode("1"), tiny.EOS_ID]
    prompt = layout.render_prompt(example.prompt)
    assert sequence.tokens[: len(prompt)].tolist() == prompt
    assert not sequence.mask[: len(prompt)].any()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b'{"prompt": [{"role":"user","content":"x"}], "completion": []}', "line 1: completion"),
        (dataset(1) + b"\n{", "line 2"),
        (b'{"prompt": [], "completion": [{"role":"assistant","content":"x"}]}', "line 1: prompt is empty"),
        (b"\n\n", "no examples"),
    ],
)
def test_a_bad_line_is_named(text: bytes, named: str):
    with pytest.raises(DatasetError, match=named):
        read_dataset(text)


def test_an_example_beyond_the_context_is_named(layout: ChatTemplate):
    short, *_, long = read_dataset(dataset(12))
    limit = len(tokenise(short, layout).tokens)
    assert len(tokenise_all([short], layout, context_length=limit)) == 1
    with pytest.raises(DatasetError, match="example 2"):
        tokenise_all([short, long], layout, context_length=limit)


@pytest.mark.parametrize(("epochs", "count"), [(1.0, 10), (2.5, 25), (0.4, 4)])
def test_fractional_epochs_see_every_example_equally_often(epochs: float, count: int):
    order = list(batch_indices(10, 4, epochs, seed=3))
    assert len(order) == num_steps(10, 4, epochs)
    seen = np.bincount(np.concatenate(order), minlength=10)
    assert seen.sum() == count
    assert seen.max() - seen.min() <= 1


def test_the_order_follows_the_seed():
    def flat(seed: int) -> list[int]:
        return np.concatenate(list(batch_indices(20, 8, 1.0, seed))).tolist()

    assert flat(1) == flat(1)
    assert flat(1) != flat(2)


def test_a_run_learns_publishes_and_resumes_exactly(home: Path, tmp_path: Path):
    store = ObjectStore(f"file://{tmp_path}/objects")
    place = Workplace(store, home / "models", tmp_path / "cache")
    spec = make_spec(algorithm={"kind": "sft", "sft_epochs": 2.0}, optimiser={"learning_rate": 5e-3})
    job = TrainJob(
        run_id="s", attempt=1, token=1, spec=msgspec.to_builtins(spec), base_model="tiny",
        dataset=store.put(dataset(24)), publish_every=2,
    )  # fmt: skip
    whole = Recorder()
    TrainerAttempt(job, place, whole).run(None)
    steps = whole.of("step")
    assert whole.of("trainer_started")[0]["total_steps"] == len(steps) == 6
    assert [bool(s["checkpoint"]) for s in steps] == [False, True, False, True, False, True]
    losses = [s["metrics"]["train/loss"] for s in steps]
    assert losses[-1] < losses[0] - 0.3

    again = Recorder()
    resumed = msgspec.structs.replace(job, attempt=2, resume_from=steps[3]["checkpoint"])
    TrainerAttempt(resumed, place, again).run(None)
    assert [s["version"] for s in again.of("step")] == [5, 6]
    left, right = (
        load_file(Path(store.path(r.of("step")[-1]["adapter"])) / "adapter_model.safetensors") for r in (whole, again)
    )
    assert all(torch.equal(left[name], right[name]) for name in left)
