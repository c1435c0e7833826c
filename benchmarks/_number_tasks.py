"""A one-turn suite that both sides of `learning_vs_trl.py` share: put numbers in order. Needs nothing but Python."""

import random
import re

SYSTEM = "Put the numbers in order, the smallest first. Answer with the numbers alone."
EXAMPLES = ("52, 17, 80, 33", "91, 64, 12, 45")
NUM_NUMBERS = 4


def in_order(question: str) -> str:
    return ", ".join(sorted(question.split(", "), key=int))


def questions(split: str, count: int) -> list[str]:
    """Different questions; a multiset of numbers is in one split only."""
    chance = random.Random("numbers")
    found: dict[str, list[str]] = {"train": [], "heldout": []}
    seen: set[str] = set()
    while len(found[split]) < count:
        numbers = [str(number) for number in chance.sample(range(10, 100), NUM_NUMBERS)]
        question = ", ".join(numbers)
        if in_order(question) not in seen:
            seen.add(in_order(question))
            found["heldout" if int(numbers[0]) % 4 == 0 else "train"].append(question)
    return found[split]


def conversation(question: str) -> list[dict[str, str]]:
    """Two worked examples, then the question."""
    turns = [{"role": "system", "content": SYSTEM}]
    for example in EXAMPLES:
        turns += [{"role": "user", "content": example}, {"role": "assistant", "content": in_order(example)}]
    return [*turns, {"role": "user", "content": question}]


def reward(question: str, answer: str) -> float:
    """1 for the right numbers in the right order; else up to .5 for numbers that stand in their place."""
    expected = in_order(question).split(", ")
    if answer.strip() == ", ".join(expected):
        return 1.0
    found = re.findall(r"\d+", answer)[:NUM_NUMBERS]
    return 0.5 * sum(a == b for a, b in zip(found, expected, strict=False)) / NUM_NUMBERS
