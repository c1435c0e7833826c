"""What the analysis reads of a task: its prompt, answer, reference and tools, as plain texts. Pure but for loading."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from apps.tasks.models import SplitName, Task
from apps.tasks.selectors import load_bundle
from gpu_workers.contracts.environment import EnvironmentContract
from gpu_workers.contracts.tasks import TaskBundle

_MAX_CONSTANT = 2000  # characters of an answer that a policy would always give


@dataclass(frozen=True)
class TaskFacts:
    """One task. `asked`: what the user says and the files given; system messages are the suite's, not the task's."""

    id: str
    key: str
    split: str
    cluster: str
    tags: tuple[str, ...]
    usable: bool
    asked: str
    num_characters: int  # of the whole prompt, with system messages
    answer: str  # canonical text of the expected answer; empty: there is none to compare
    reference: str  # all assistant turns of the reference
    final: str  # its last one
    tools: tuple[str, ...]
    called: str  # tool that the reference calls first; empty: none
    contract: EnvironmentContract


def read_facts(tasks: Sequence[Task]) -> list[TaskFacts]:
    """Facts of tasks, in their order. Raises StoreError where content is lost."""
    return [facts_of(task, load_bundle(task)) for task in tasks]


def facts_of(task: Task, bundle: TaskBundle) -> TaskFacts:
    asked = [message.content for message in bundle.prompt if message.role != "system"]
    asked += [f"{path}\n{text}" for path, text in sorted(bundle.contract.files.items())]
    said = [message.content for message in bundle.reference if message.role == "assistant"]
    return TaskFacts(
        id=str(task.pk),
        key=task.key,
        split=task.split,
        cluster=task.cluster,
        tags=tuple(task.tags),
        usable=task.state == "ready",
        asked="\n".join(asked),
        num_characters=sum(len(message.content) for message in bundle.prompt),
        answer=_canonical(bundle.verifier.expected),
        reference="\n".join(said),
        final=said[-1] if said else "",
        tools=tuple(tool.name for tool in bundle.tools),
        called=_called(said[0] if said else "", [tool.name for tool in bundle.tools]),
        contract=bundle.contract,
    )


def usual_answer(facts: Sequence[TaskFacts]) -> str:
    """The answer a policy would always give: the most frequent last reference turn of tasks that are not held out.

    Held-out tasks do not count: a policy cannot have learnt from them. Ties go to the earlier task; empty: none.
    """
    usual = Counter(fact.final for fact in facts if fact.final and fact.split != SplitName.HELDOUT).most_common(1)
    return usual[0][0][:_MAX_CONSTANT] if usual else ""


def usual_tool(facts: Sequence[TaskFacts]) -> str:
    """The tool that references of tasks that are not held out call most; where none calls one, the commonest tool."""
    seen = [fact for fact in facts if fact.split != SplitName.HELDOUT]
    called = Counter(fact.called for fact in seen if fact.called)
    declared = Counter(name for fact in seen for name in fact.tools)
    usual = (called or declared).most_common(1)
    return usual[0][0] if usual else ""


def _called(text: str, tools: Sequence[str]) -> str:
    opened = [(text.find(form), name) for name in tools for form in (f"{name}(", f'"{name}"') if form in text]
    return min(opened)[1] if opened else ""


def _canonical(expected: Any) -> str:
    if expected is None:
        return ""
    if isinstance(expected, str):
        return expected.strip()
    return json.dumps(msgspec.to_builtins(expected), sort_keys=True, ensure_ascii=False)
