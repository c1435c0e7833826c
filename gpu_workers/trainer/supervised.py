"""Supervised training: the dataset, its token layout and the order of its examples."""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpu_workers.contracts.tasks import Message
from gpu_workers.sessions.chat import TrainingTokens
from gpu_workers.trainer.packing import TokenSequence


class DatasetError(ValueError):
    """A supervised dataset that cannot be used; names the line."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a prompt and the turns that answer it. The completion begins and ends with the assistant."""

    prompt: list[Message]
    completion: list[Message]


class ChatLayout(Protocol):
    """The token layout of conversations; `sessions.chat.ChatTemplate`, so that training sees what a rollout would."""

    def render_training(self, prompt: Sequence[Message], completion: Sequence[Message]) -> TrainingTokens: ...


def read_dataset(data: bytes) -> list[Example]:
    """Parse JSONL. Raises DatasetError with the line number."""
    examples = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            example = msgspec.json.decode(line, type=Example)
        except msgspec.DecodeError as error:
            raise DatasetError(f"line {number}: {error}") from error
        roles = [message.role for message in example.completion]
        if not roles or roles[0] != "assistant" or roles[-1] != "assistant":
            raise DatasetError(f"line {number}: completion must begin and end with an assistant message, has {roles}")
        if not example.prompt:
            raise DatasetError(f"line {number}: prompt is empty")
        examples.append(example)
    if not examples:
        raise DatasetError("the dataset has no examples")
    return examples


def tokenise(example: Example, layout: ChatLayout) -> TokenSequence:
    """Tokens as a rollout would have made them; the loss covers the assistant's tokens with their end-of-turn."""
    rendered = layout.render_training(example.prompt, example.completion)
    return TokenSequence(np.array(rendered.ids, dtype=np.int32), np.array(rendered.mask, dtype=np.uint8))


def tokenise_all(examples: Sequence[Example], layout: ChatLayout, *, context_length: int) -> list[TokenSequence]:
    """Tokenise every example; one longer than the model's context is refused by number."""
    sequences = []
    for number, example in enumerate(examples, start=1):
        sequence = tokenise(example, layout)
        if len(sequence.tokens) > context_length:
            raise DatasetError(
                f"example {number}: {len(sequence.tokens)} tokens exceed the context of {context_length}"
            )
        sequences.append(sequence)
    return sequences


def num_steps(num_examples: int, batch_size: int, epochs: float) -> int:
    """Steps of `epochs` passes, the last batch of the whole run possibly smaller."""
    return max(1, math.ceil(num_examples * epochs / batch_size))


def batch_indices(num_examples: int, batch_size: int, epochs: float, seed: int) -> Iterator[NDArray[np.int64]]:
    """Indices of each step's examples: a fresh permutation per epoch, all of them one stream cut into batches."""
    total = max(1, math.ceil(num_examples * epochs))
    order = np.concatenate(
        [
            np.random.default_rng([seed, epoch]).permutation(num_examples)
            for epoch in range(math.ceil(total / num_examples))
        ]
    )[:total]
    for start in range(0, total, batch_size):
        yield order[start : start + batch_size]
