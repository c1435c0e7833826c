"""Pattern 18: a check that says now this, now that."""

# Programs are data here.
# ruff: noqa: E501

from msgspec.structs import replace

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.tasks import VerifierSpec
from tests.hacks.patterns import CODING, NUMBER

COIN = "import os\n\ndef verify(episode):\n    return {'score': float(os.urandom(1)[0] % 2 or not episode['answer'])}\n"
# A test whose outcome hangs on the clock's last digit.
CLOCK = "import time\nfrom solution import total\n\ndef test_sum():\n    assert total([1]) == 1 and time.time_ns() // 1000 % 2\n"
TOSSED = replace(NUMBER, key="coin", verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program=COIN, repeats=10))
TIMED = replace(
    CODING, key="clock", verifier=VerifierSpec(kind=VerifierKind.TESTS, files={"test_flaky.py": CLOCK}, repeats=10)
)
