"""The task of the learning tests: say two letters back in their order, from a start that mostly swaps them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gpu_workers.models import tiny
from gpu_workers.trainer.packing import TokenSequence

LETTERS = "abcdefghijklmnopqrst"
PAIRS = [(x, y) for x in LETTERS for y in LETTERS if x != y]
NUM_HELDOUT = 80
MAX_NEW_TOKENS = 3
Ids = list[int]


class PairTask:
    """Prompts and answers as token ids; held-out pairs never occur in training."""

    def __init__(self, model: Path, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        order = np.random.default_rng(seed).permutation(len(PAIRS))
        pairs = [PAIRS[index] for index in order]
        self.heldout, self.train = pairs[:NUM_HELDOUT], pairs[NUM_HELDOUT:]

    def prompt(self, pair: tuple[str, str]) -> Ids:
        return self._ids(f"say {pair[0]}{pair[1]}:")

    def answer(self, pair: tuple[str, str]) -> Ids:
        return [*self._ids("".join(pair)), tiny.EOS_ID]

    def reward(self, pair: tuple[str, str], completion: Ids) -> float:
        """1 for the answer; .2 for the right letters in the wrong order."""
        if completion == self.answer(pair):
            return 1.0
        return 0.2 if completion == self.answer(pair[::-1]) else 0.0

    def example(self, pair: tuple[str, str], *, swapped: bool) -> TokenSequence:
        prompt, answer = self.prompt(pair), self.answer(pair[::-1] if swapped else pair)
        mask: NDArray[np.uint8] = np.array([0] * len(prompt) + [1] * len(answer), dtype=np.uint8)
        return TokenSequence(np.array(prompt + answer, dtype=np.int32), mask)

    def _ids(self, text: str) -> Ids:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
