"""Task folders in Harbor's format, as a test writes them."""

TOML = """
version = "1.0"

[metadata]
difficulty = "easy"
tags = ["shell"]

[verifier]
timeout_sec = 30.0

[agent]
timeout_sec = 60.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory = "512M"
storage = "10G"
"""
DOCKERFILE = """# the image
FROM python:3.13-slim-bookworm
WORKDIR /app
ENV GREETING="good day"
COPY data/ /app/data/
COPY words.txt ./
"""
TEST = """#!/bin/bash
cd /app
if [ "$(cat /app/sum.txt 2>/dev/null)" = "$(cat /tests/expected.txt)" ] && [ "$GREETING" = "good day" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
SOLVE = """#!/bin/bash
set -e
cat /app/data/numbers.txt | python3 /solution/add.py > /app/sum.txt
"""
ADD = "import sys\nprint(sum(map(int, sys.stdin)))\n"


def folder(name: str = "add-up", **changes: str | bytes | None) -> dict[str, bytes]:
    """Files of one task below its folder; `changes`: path with / as __ and . as _dot_, None removes it."""
    files: dict[str, str | bytes] = {
        "task.toml": TOML,
        "instruction.md": f"Add up the numbers in /app/data/numbers.txt and write the sum to /app/sum.txt ({name}).\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/data/numbers.txt": "3\n4\n5\n",
        "environment/words.txt": "none\n",
        "tests/test.sh": TEST,
        "tests/expected.txt": "12\n",
        "solution/solve.sh": SOLVE,
        "solution/add.py": ADD,
    }
    for key, content in changes.items():
        path = key.replace("__", "/").replace("_dot_", ".")
        if content is None:
            del files[path]
        else:
            files[path] = content
    return {f"{name}/{path}": text if isinstance(text, bytes) else text.encode() for path, text in files.items()}
