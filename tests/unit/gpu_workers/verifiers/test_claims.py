"""Numbers as answers: honest working and phrasing passes, more than one value that is offered has the wrong form."""

import asyncio

import pytest

from gpu_workers.contracts.enums import ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.number import NumberVerifier

HONEST = (
    "24",
    "24.0",
    "**24**",
    "The answer is 24 (that is 7 + 8 + 9).",
    "The answer is 24. I added 7, 8 and 9.",
    "The answer is 24, since 7 + 8 = 15 and 9 more make it.",
    "7 + 8 = 15, and 15 + 9 = 24.\nCheck: 24 - 9 = 15 and 15 - 8 = 7.\n\nThe answer is 24.",
    "7 + 8 = 16. Wait, that is wrong: 7 + 8 = 15. Then 15 + 9 = 24.\n\n**24**",
    "Let x = 7 + 8 = 15. Then x + 9 = 24, so \\boxed{24}.",
    "What is 7 + 8 + 9? It is 24.",
    "You asked for the sum of 7, 8 and 9. That is 24.",
    "The total is 23. No, wait: 24.",
    "The total is 23. No, wait, I dropped one: the total is 24.",
    "The answer is 23. Correction: the answer is 24.",
    "First 7 + 8 = 15. Next 15 + 9 = 24. So the result is 24.",
    "The sum of 7 and 8 is 15. The sum of 15 and 9 is 24.",
    "The total after two numbers is 15. The total after three numbers is 24.",
    "The running total is 15. The running total is 24. The answer is 24.",
    "Step 1: the result is 15\nStep 2: the result is 24",
    "Step 1: 15\nStep 2: 24",
    "Apples: 7\nPears: 8\nPlums: 9\nTotal: 24",
    "| fruit | number |\n|---|---|\n| apples | 7 |\n| pears | 8 |\n| plums | 9 |\n| total | 24 |",
    "| apples | 7 |\n| pears | 8 |\n| plums | 9 |\n\nTogether 24.",
    "a = 7, b = 8, c = 9, so the sum = 24",
    "a = 7; b = 8; c = 9; a + b + c = 24",
    "total = 7 + 8 = 15\ntotal = 15 + 9 = 24",
    "total = 0\ntotal = 0 + 7 = 7\ntotal = 7 + 8 = 15\ntotal = 15 + 9 = 24",
    "x² + 21x - 1080 = 0 gives x = -45 or x = 24. Since x must be positive, x = 24.",
    "If we add 7 and 8, we get 15. If we then add 9, we get 24.",
    "If all three are added, it is 24.",
    "When 7 is taken first, 17 are left to add, which gives 24.",
    "Each box holds 8 pens. There are 3 boxes, so 3 × 8 = 24 pens.",
    "Distance = 12 × 2 = 24 km",
    "Speed: 12\nTime: 2\nDistance: 24",
    "The price is 30 and the discount is 6, so he pays 24.",
    "Price: $30\nDiscount: $6\nFinal price: $24",
    "It takes 2 hours for one and 24 hours for all.",
    "24 hours (1440 minutes)"[:8],
    "Answer: 24 (twenty-four)",
    "Twenty-four or, in digits, 24.",
    "There are 24 possible outcomes.",
    "There are 4 × 6 = 24 possible results.",
    "I can't draw it, but the answer is 24.",
    "Sorry for the long text. 7 + 8 = 15, 15 + 9 = 24.",
    "I cannot help but notice that 7 + 8 + 9 = 24.",
    "\\[7 + 8 + 9 = 24\\]\n\\boxed{24}",
    "\\boxed{24}. To check: 24 - 9 = 15.",
    "The final answer is $\\boxed{24}$.",
    "**Answer:** 24",
    "Answer: 6 times 4, so 24",
    "The answer is 4 times 6, which makes 24. That is near 25.",
    "The answer is 20 plus 4.\n\nThat is 24.",
    "My answer: 24. This is 3 more than 21.",
    "The result is 24, i.e. 3 times 8.",
    "Not 23, and not 25 either: 7 plus 8 plus 9 is exactly 24.",
    "Attempt 1: 25 (wrong: I took 9 twice).\nAttempt 2: 24",
    "Attempt 1: 24\nAttempt 2: 24",
    "Solution 1: x = -45\nSolution 2: x = 24\nOnly the second is positive: 24",
    "<answer>24</answer>. To check: 24 - 9 = 15.",
    '{"first_number": 7, "second_number": 17, "answer": 24}',
    "Cars sold by 30 June 2024: 24",
    "So 24 in total: 7 in May, 8 in June, 9 in July.\n\nAnswer: 24",
)
HEDGES = (
    "The total is 18. No, wait, the total is 19. No, wait, the total is 24.",
    " ".join(f"The total is {k}. No, wait, let me redo that:" for k in range(18, 24)) + " The total is 24.",
    "18. No, wait: 19. No, wait: 20. No, wait: 24.",
    "18. Actually 20. Actually 24.",
    "Attempt 1: 18\nAttempt 2: 24",
    "**Attempt 1:** 18\n**Attempt 2:** 24",
    "Try one: 18. Try two: 24.",
    "First answer: 18. Second answer: 24.",
    "Solution 1: 18\n\nSolution 2: 24",
    '{"first_answer": 18, "answer": 24}',
    '{"alternative": 18, "answer": 24}',
    "<answer>18</answer>\n<answer>24</answer>",
    "18 24",
    "The answer: 24 18",
    "The answer is 24, 18.",
    "It is 18. Sorry, 21. Oops, 24.",
    "Hmm, 18. Let me recheck. 21. Let me recheck. 24.",
    "The answer is 18. Correction: the answer is 20. Correction: the answer is 24.",
    "The answer is 18. The answer is 24.",
    "The answer is 18. I also think that the answer is 24.",
    "My answer: 18\nYour answer: 24",
    "Answer: 18\nFinal answer: 24",
    "The final answer is 24. The final answer is 504. The final answer is 24.",
    "Final answer (if added): 24\nFinal answer (if multiplied): 504\nFinal answer (if added): 24",
    "Final answer (literally): 18\nFinal answer (loosely): 24",
    "Answer (a): 18. Answer (b): 24.",
    "The answer could be 18. The answer could also be 24.",
    "The answer is 24. It could also be 504.",
    "The answer is 24, or maybe 504.",
    "The answer is 24. Alternatively, 504.",
    "The answer is 24, unless 504 was meant.",
    "The answer is 504, or perhaps it is 24.",
    "\\boxed{18} \\boxed{24}",
    "\\boxed{18}, and by another way \\boxed{24}",
    "The answer is \\boxed{18}\n\nThe answer is \\boxed{24}",
    "x = 18; x = 24",
    "x = 18\nx = 24",
    "total = 18, total = 24",
    "n = 504 and n = 24",
    "If A: 504\nIf B: 15\nIf C: 24",
    "If multiplied, it is 504. If added, it is 24.",
    "Assuming a product: 504. Assuming a sum: 24.",
    "In case you multiply: 504; in case you add: 24",
    "When multiplied it gives 504, when added it gives 24.",
    "If it is a product, 504, otherwise 24.",
    "| a | 18 |\n| b | 24 |",
    "| reading | value |\n|---|---|\n| product | 504 |\n| sum | 24 |",
    "504 = product, 24 = sum",
    "product = 504, sum = 24",
    "Product: 504\nSum: 24",
    "- product: 504\n- first two: 15\n- sum: 24",
    "Either eighteen or 24",
    "eighteen or 24",
    "24 or eighteen",
    "It is 24, or maybe twenty-eight.",
    "Possible results are \\(18\\), \\(20\\), \\(22\\) and finally \\(24\\)",
    "Possible answers: 18 and then 24",
    "It might be 18, then again it might be 24.",
    "It could be 18 but also 24.",
    "Candidates are 18 as well as 24",
    "My guesses: 18, followed by 24",
    "\n\n".join(f"Attempt {i}: the result is {k}." for i, k in enumerate(range(15, 25))),
    "The result is 18. The result is 24.",
)
REFUSALS = (
    "I am sorry, I cannot help with that. (24 hours a day, I am here.)",
    "I can't answer this. Call 24.",
    "I won't do that. 24",
    "Unable to solve this within 24 tries.",
    "I refuse: 24",
)


def judged(answer, expected=24):
    verifier = NumberVerifier(VerifierSpec(kind=VerifierKind.NUMBER, expected=expected))
    task = TaskBundle(key="t", prompt=[], verifier=verifier_spec(expected), reference=[])
    return asyncio.run(verifier.verify(task, FinishedEpisode(answer=answer, messages=[], files={})))


def verifier_spec(expected):
    return VerifierSpec(kind=VerifierKind.NUMBER, expected=expected)


@pytest.mark.parametrize("answer", HONEST)
def test_an_honest_answer_passes(answer):
    assert judged(answer).verdict is Verdict.PASS, judged(answer)


@pytest.mark.parametrize("answer", HEDGES)
def test_several_values_that_are_offered_have_the_wrong_form(answer):
    assert judged(answer).reason_code is ReasonCode.FORMAT_INVALID, judged(answer)


@pytest.mark.parametrize("answer", REFUSALS)
def test_a_refusal_is_no_answer(answer):
    result = judged(answer)
    assert result.verdict is Verdict.FAIL and result.reason_code is ReasonCode.NO_OUTPUT


def test_the_claimed_value_counts_and_no_other():
    assert judged("The answer is 23. It is near 24.").verdict is Verdict.FAIL
    assert judged("The answer is 24. It is near 23.").verdict is Verdict.PASS
