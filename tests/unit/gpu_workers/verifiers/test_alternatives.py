"""Answers that commit themselves to one value, and answers that leave the choice."""

import pytest

from gpu_workers.verifiers.alternatives import alternatives
from gpu_workers.verifiers.extraction import compile_pattern, several_matches
from gpu_workers.verifiers.number import numbers_in

OPEN = (
    "28 or 29", "29 or 28", "28/29", "Either 27, 28 or 29.", "The candidates are 28 and 29.", "26, 27, 28, 30, 31, 29",
    "The number of days is one of: 26, 27, 28, 30, 31, 29", "Options: 26; 27; 28; 30; 31; 29.", "28-29", "28 to 29",
    "28…29", "28 or maybe 29", "28, or possibly 29", "28 or perhaps even 29", "28 or else 29", "28 and/or 29",
    "28 days or 29 days", "28 or 29 days", "$28$ or $29$", "**28** or **29**", "28 \\text{ or } 29", "28 (or 29)",
    "\\boxed{28} or \\boxed{29}", "[28, 29]", "28 | 29", "28 & 29", "28\n29", "- 27\n- 28\n- 29",
    "28, alternatively 29", "28 otherwise 29", "It is 28, 29",
    # lists of offers
    '- [ ] 26\n- [ ] 27\n- [ ] 28',
    '- [x] 26\n- [x] 27\n- [x] 28',
    'Tick the right one:\n- [ ] 31\n- [ ] 28',
    '- [x] 26\n- [x] 28\n- [ ] 29',
    'Possible answers:\n- 26\n- 27\n- 28',
    'Possible answers:\n1. 26\n2. 27\n3. 28',
    '| answer |\n|---|\n| 26 |\n| 27 |\n| 28 |',
    '26 days. 27 days. 28 days.',
    'A: 26 B: 27 C: 28',
    'A: 26\nB: 27\nC: 28',
    '**29** **28**',
    'It could be 26, it could be 27, it could be 28',
    '## Answer\n- 26\n- 27\n- 28',
    '26\n\n27\n\n28',
    'Answers:\n26\n27\n28',
    '* 26\n* 27\n* 28',
    'Maybe 26. Maybe 27. Maybe 28.',
    'A) 26\nB) 27\nC) 28',
    'Answers:\n- 26 days\n- 27 days\n- 28 days',
    'It is 26. It is 27. It is 28.',
    'Answer: 26\nAnswer: 27\nAnswer: 28',
    'the answer is 26; the answer is 27; the answer is 28',
    '☐ 26\n☐ 27\n☐ 28',
)  # fmt: skip
SETTLED = (
    "29", "It has 29 days.", "12 of 28 days, so 28", "A = 3, B = 4 so 7", "A = 3, B = 4",
    "x = 3 and y = 4, so x + y = 7",
    "2 hours or 120 minutes", "120 cm or 1.2 m", "50% or 0.5", "1/2 or 0.5", "28.97, or about 29", "28.97 or 29",
    "29 (29.0)", "29 = 29.00", "It was on July 20, 1969.", "On 3 May 2024", "2024-02-29", "29/02/2024",
    "6 times 7: 6 + 6 = 12, 18, 24, 30, 36 and 42 at last, so the answer is 42", "3 + 4 = 7", "10^3 = 1000",
    "Distance / time = 100 / (5/6) = 600/5.\n\n**+1.20000e2** km/h", "The range is 10-20 and the mean is 15",
    "There are 12 boys and 16 girls: 28", "First 12, then 17, which makes 29", "Steps:\n12\n17\n29", "28? No: 29",
    "1,234", "between 20 and 30 there is 29", "$1,200 and a tip of $240 make $1,440", "16/4 = 4", "Answer: 29 of 366",
    "With 10 or more students, the price is 29", "5 apples and 24 pears are 29 fruits", "Sum: 5, 10 and 14. Total 29",
    "It takes 3 to 4 hours on average; 3.5", "f(2) = 29", "-3", "Q1 = 28, Q2 = 29", "3 1/2 hours is 210 minutes",
    "She pays 4 x 7 = 28 plus 1 = 29", "The ratio is 3:4, so 4", "#### 29", "no number",
    # lists of working
    '- Monday: 12\n- Tuesday: 16\nTotal: 28',
    '| day | n |\n|---|---|\n| Mon | 12 |\n| Tue | 16 |\n| Total | 28 |',
    '1. 3+4=7\n2. 7*4=28',
    'Steps:\n12\n17\n29',
    '- 3 + 4 = 7\n- 7 * 4 = 28',
    '- [x] 28',
    '- [ ] 27\n- [x] 28\n- [ ] 26',
    'Working:\n- 12\n- 16\n\nSum: 28',
    '- 12\n- 16\nTotal: 28',
    'A: 12, B: 16, so 28',
    'She has 12. He has 16. Together 28.',
    'I read 12 pages. I read 16 pages. In all 28.',
    'First 12. Then 16. So 28.',
    'Monday 12\nTuesday 16\nTotal 28',
    '| 12 |\n| 16 |\n| **28** |',
    'x = 3\ny = 4\nx + y = 7',
    '**12** + **16** = **28**',
    'There are 12 boys. There are 16 girls. There are 28 children.',
    'A: 12\nB: 16\nTotal: 28',
    'Not 27. 28.',
    '- Adults: 12\n- Children: 16\n- Total: 28',
    '- 4 boxes\n- 7 apples\n28 apples',
)  # fmt: skip


@pytest.mark.parametrize("answer", OPEN)
def test_a_choice_is_no_answer(answer):
    assert len(alternatives(answer, numbers_in(answer))) > 1


@pytest.mark.parametrize("answer", SETTLED)
def test_numbers_on_the_way_leave_no_choice(answer):
    assert alternatives(answer, numbers_in(answer)) == []


@pytest.mark.parametrize(
    ("answer", "several"),
    [
        ("\\boxed{A} or \\boxed{C}", True),
        ("\\boxed{A}\n\\boxed{B}\n\\boxed{C}", True),
        ("$\\boxed{B}$ and $\\boxed{C}$", True),
        ("I first had \\boxed{A}, but checking gives \\boxed{C}", False),
        ("\\boxed{C}", False),
        ("\\boxed{C}\n\n\\boxed{C}", False),
    ],
)
def test_answers_in_a_required_form(answer, several):
    assert bool(several_matches(answer, compile_pattern(r"\\boxed\{([A-D])\}"))) is several


def test_a_list_without_end_is_looked_at_up_to_a_bound():
    answer = ", ".join(map(str, range(50_000)))
    assert len(alternatives(answer, numbers_in(answer))) == 100
