"""Branches of a session as the contract's trajectory."""

from gpu_workers.contracts.trajectories import Branch, BranchSummary, Trajectory
from gpu_workers.sessions.conversation import Conversation, Node
from gpu_workers.sessions.table import Session


def trajectory_of(session: Session, which: str = "main") -> Trajectory:
    """`which`: main, all, or a branch's number. Raises KeyError for a branch that there is not."""
    conversation = session.conversation
    seen: set[Node] = set()
    forks: list[BranchSummary] = []
    branches: list[Branch] = []
    for rank, leaf in enumerate(conversation.branches()):
        path = leaf.path()
        shared = sum(len(node.ids) for node in path if node in seen)
        seen.update(path)
        forks.append(_summary(leaf, path, main=rank == 0, shared=shared))
        if which == "all" or which == str(leaf.index) or (which == "main" and rank == 0):
            branches.append(_branch(conversation, leaf, main=rank == 0, shared=shared))
    if not branches and which not in ("main", "all"):
        raise KeyError(which)
    return Trajectory(
        id=session.id,
        label=session.spec.label,
        model_path=session.opened.model_path,
        policy=session.policy,
        tool_format=str(session.form),
        num_turns=conversation.num_turns,
        num_running=len(session.running),
        forks=forks,
        branches=branches,
    )


def _summary(leaf: Node, path: list[Node], *, main: bool, shared: int) -> BranchSummary:
    return BranchSummary(
        branch=leaf.index,
        main=main,
        shared_tokens=shared,
        num_tokens=leaf.depth + len(leaf.ids),
        num_sampled_tokens=sum(len(node.ids) for node in path if node.choice is not None),
        num_constrained_tokens=_num_constrained(path),
        finish_reason=_finish(leaf),
    )


def _branch(conversation: Conversation, leaf: Node, *, main: bool, shared: int) -> Branch:
    tokens = conversation.tokens_of(leaf)
    spans = [
        (version, node.depth + start, node.depth + stop)
        for node in leaf.path()
        if node.choice is not None and not node.choice.constrained
        for version, start, stop in node.choice.spans
    ]
    return Branch(
        branch=leaf.index,
        main=main,
        shared_tokens=shared,
        num_prompt_tokens=tokens.num_prompt_tokens,
        ids=tokens.ids,
        mask=tokens.mask,
        logprobs=tokens.logprobs,
        versions=spans,
        turns=tokens.turns,
        num_constrained_tokens=_num_constrained(leaf.path()),
        finish_reason=_finish(leaf),
    )


def _num_constrained(path: list[Node]) -> int:
    return sum(len(node.ids) for node in path if node.choice is not None and node.choice.constrained)


def _finish(leaf: Node) -> str:
    return leaf.choice.finish_reason if leaf.choice is not None else ""
