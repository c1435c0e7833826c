"""Writes rows of reasoning-gym generators as JSON lines; run by the Python that has the package, never imported.

`python reasoning_gym_rows.py '{"generators": {"gcd": {}}, "count": 3, "seed": 1}'` prints rows of {generator, index,
question, answer, wrong: [texts that earn less than 1], score, scores}. The package's own scorer judges them here.
"""

import json
import os
import sys
import warnings


def rows(request: dict) -> list:
    import reasoning_gym

    found = []
    for name, config in request["generators"].items():
        dataset = reasoning_gym.create_dataset(name, size=request["count"], seed=request["seed"], **config)
        for index in range(request["count"]):
            entry = dataset[index]
            answer = str(entry["answer"])
            wrong = [answer + "1", f"{answer} or 0", "unknown"]
            found.append(
                {
                    "generator": name,
                    "index": index,
                    "question": entry["question"],
                    "answer": answer,
                    "wrong": wrong,
                    "score": float(dataset.score_answer(answer, entry)),
                    "scores": [float(dataset.score_answer(text, entry)) for text in wrong],
                }
            )
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    answers = os.dup(1)
    os.dup2(2, 1)  # what the package prints is no row
    with os.fdopen(answers, "w", encoding="utf-8") as out:
        for row in rows(json.loads(sys.argv[1])):
            out.write(json.dumps(row) + "\n")
