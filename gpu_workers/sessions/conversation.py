"""The turns of one session as a tree of exact tokens: what was sampled stays, what an agent changed is a branch."""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_workers.contracts.groups import TurnRecord
from gpu_workers.contracts.messages import PolicyRef
from gpu_workers.contracts.tasks import Message
from gpu_workers.contracts.text import storable
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.formats import FoundCall, ToolFormat, tool_instructions, write_calls
from gpu_workers.sessions.records import Choice, Piece, Said, Turn
from gpu_workers.sessions.session import TokenSession


class ConversationError(ValueError):
    """Messages that are no conversation; `index` is the message's."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


@dataclass(eq=False)
class Node:
    """A piece or a choice in its place. `depth` tokens lie before it."""

    index: int
    parent: "Node | None"
    ids: "array[int]"
    depth: int
    said: tuple[Said, ...]
    choice: Choice | None = None
    turn: int = -1
    policy: PolicyRef = field(default_factory=PolicyRef)
    children: "dict[Any, list[Node]]" = field(default_factory=dict)

    @property
    def num_children(self) -> int:
        return sum(len(nodes) for nodes in self.children.values())

    def path(self) -> "list[Node]":
        """From the start of the conversation to here."""
        nodes, node = [], self
        while True:
            nodes.append(node)
            if node.parent is None:
                return nodes[::-1]
            node = node.parent


@dataclass(frozen=True)
class Place:
    """Where a request goes on: below `node` after `pieces`, with `ids` before the next sampled token."""

    node: Node | None
    pieces: list[Piece]
    ids: list[int]

    @property
    def num_reused(self) -> int:
        """Tokens of earlier turns, kept id by id."""
        return len(self.ids) - sum(len(piece.ids) for piece in self.pieces)


class Conversation:
    """Grows by whole turns. Nothing that was added is ever changed."""

    def __init__(self, template: ChatTemplate, form: ToolFormat) -> None:
        self.template = template
        self._form = form
        self.nodes: list[Node] = []
        self.num_tokens = 0
        self.num_turns = 0
        self.last_turn = -1
        self._roots: dict[Any, list[Node]] = {}

    def locate(self, said: Sequence[Said], tools: Sequence[dict[str, Any]]) -> Place:
        """The longest known beginning of the messages, and the rest as observed pieces.

        Where several branches read alike, the one with more sampled turns, then the newest, is taken.
        Raises ConversationError, or TemplateError when the model's template refuses the rest.
        """
        groups = _split(said)
        names = json.dumps(tools, ensure_ascii=False, sort_keys=True) if tools else ""
        keys = [_group_key(group, names if not i else "") for i, group in enumerate(groups)]
        node, num_known = self._follow(self._roots, keys)
        return self._place(node, groups[num_known:], num_known, names, tools)

    def locate_after(self, node: Node, said: Sequence[Said]) -> Place | None:
        """As `locate`, where all before the assistant message `said[0]` is known to be `node`; None: read it whole."""
        groups = _split(said, begun=True)
        found, num_known = self._follow(node.children, [_group_key(group) for group in groups])
        return None if found is None else self._place(found, groups[num_known:], num_known + 1, "", ())

    def add(self, turn: Turn) -> list[Node]:
        """The nodes of its choices."""
        missing, node = self._missing(turn)
        for piece in missing:
            node = self._put(node, piece.ids, piece.said, _group_key(piece.said, piece.tools))
        nodes = []
        for choice in turn.choices:
            added = self._put(node, choice.ids, (choice.reply,), choice.reply.key())
            added.choice, added.turn, added.policy = choice, turn.number, turn.policy
            nodes.append(added)
        self.num_turns += 1
        self.last_turn = max(self.last_turn, turn.number)
        return nodes

    def branches(self) -> list[Node]:
        """The last nodes of all branches: first that of the newest turn's first choice, then in the order they began.

        An aborted turn comes after those that somebody was answered with.
        """
        leaves = [node for node in self.nodes if not node.children]
        main = max(leaves, key=lambda node: (not _aborted(node), node.turn, -node.index), default=None)
        return sorted(leaves, key=lambda node: (node is not main, _aborted(node), node.index))

    def tokens_of(self, leaf: Node) -> TokenSession:
        """A branch as the session that a rollout worker would have had."""
        path = leaf.path()
        session = TokenSession.grown(self.template, leaf.policy, len(path[0].ids))
        for node in path:
            start = len(session.ids)
            if node.choice is None or node.choice.constrained:
                session.extend_observed(node.ids)
            else:
                session.extend_sampled(node.ids, node.choice.logprobs, list(_versions(node.choice)))
            for said in node.said:
                text = self._text(said) if node.choice is None else node.choice.text
                session.messages.append(Message(role=said.role, content=text))
                session.turns.append(_record(said.role, text, start, len(session.ids), node.choice))
        return session

    def _follow(self, children: "dict[Any, list[Node]]", keys: Sequence[Any]) -> tuple[Node | None, int]:
        """The best node that the keys lead to from there, and how many keys lead to it."""
        reached: tuple[Node | None, int] = (None, 0)
        frontier = children.get(keys[0], [])
        for depth in range(1, len(keys) + 1):
            if not frontier:
                break
            reached = (frontier[0] if len(frontier) == 1 else max(frontier, key=_preference)), depth
            if depth < len(keys):
                frontier = [child for node in frontier for child in node.children.get(keys[depth], ())]
        return reached

    def _place(
        self,
        node: Node | None,
        groups: Sequence[tuple[Said, ...]],
        index: int,
        names: str,
        tools: Sequence[dict[str, Any]],
    ) -> Place:
        """Below `node`, with the groups from number `index` on as new pieces."""
        pieces: list[Piece] = []
        last = node.ids[-1] if node is not None else None
        for number, group in enumerate(groups, start=index):
            piece = self._piece(group, number, last, names, tools)
            last = piece.ids[-1]
            pieces.append(piece)
        ids: array[int] = array("i")
        for known in node.path() if node is not None else ():
            ids.extend(known.ids)
        for piece in pieces:
            ids.extend(piece.ids)
        return Place(node, pieces, ids.tolist())

    def _piece(
        self, group: tuple[Said, ...], index: int, last: int | None, names: str, tools: Sequence[dict[str, Any]]
    ) -> Piece:
        if index % 2:
            (said,) = group
            marker, calls = write_calls(_calls(said), self._form) if said.calls else ("", "")
            between = "\n" if said.content and calls and not marker else ""
            return Piece(group, self.template.written_turn(said.content + between, marker, calls))
        messages = [Message(role=said.role, content=said.content) for said in group]
        if index == 0:
            if tools and not self.template.takes_tools:
                messages = _with_instructions(messages, tool_instructions(tools, self._form))
                tools = ()
            return Piece(group, self.template.render_prompt(messages, tools), names)
        close = [] if last == self.template.eos_id else [self.template.eos_id]
        return Piece(group, close + self.template.suffix(messages))

    def _missing(self, turn: Turn) -> tuple[list[Piece], Node | None]:
        """Pieces that are not there yet (two requests may bring the same), and the node that they go below."""
        node = self.nodes[turn.parent] if turn.parent >= 0 else None
        for done, piece in enumerate(turn.pieces):
            below = self._roots if node is None else node.children
            same = [n for n in below.get(_group_key(piece.said, piece.tools), ()) if n.choice is None]
            if not same:
                return turn.pieces[done:], node
            node = same[0]
        return [], node

    def _put(self, parent: Node | None, ids: Sequence[int], said: tuple[Said, ...], key: Any) -> Node:
        depth = 0 if parent is None else parent.depth + len(parent.ids)
        node = Node(len(self.nodes), parent, array("i", ids), depth, said)
        self.nodes.append(node)
        self.num_tokens += len(ids)
        (self._roots if parent is None else parent.children).setdefault(key, []).append(node)
        return node

    def _text(self, said: Said) -> str:
        if not said.calls:
            return said.content
        marker, calls = write_calls(_calls(said), self._form)
        return f"{said.content}{marker}{calls}"


def _versions(choice: Choice) -> Iterator[int]:
    for version, start, stop in choice.spans:
        yield from [version] * (stop - start)


def _split(said: Sequence[Said], *, begun: bool = False) -> list[tuple[Said, ...]]:
    """Alternately what is observed and one assistant turn; ends with what is observed, and begins so unless `begun`."""
    groups: list[tuple[Said, ...]] = []
    waiting: list[Said] = []
    known: set[str] = set()
    for index, message in enumerate(said):
        if message.role == "assistant":
            if not waiting and not (begun and not index):
                where = "the first message" if not index else "a message after an assistant's"
                raise ConversationError(index, f"{where} must not be an assistant's")
            groups += [tuple(waiting), (message,)] if waiting else [(message,)]
            waiting, known = [], {call.id for call in message.calls}
            continue
        if message.role == "tool" and message.call_id not in known:
            asked = ", ".join(sorted(known)) or "none"
            problem = f"tool_call_id {message.call_id!r} answers no call of the assistant message before it ({asked})"
            raise ConversationError(index, problem)
        waiting.append(message)
    if not waiting:
        raise ConversationError(len(said) - 1, "the last message must not be an assistant's: nothing asks for a turn")
    return [*groups, tuple(waiting)]


def _group_key(group: Sequence[Said], tools: str = "") -> Any:
    return group[0].key() if group[0].role == "assistant" else (tools, *(said.key() for said in group))


def _calls(said: Said) -> list[FoundCall]:
    """Calls that the agent wrote; arguments that are no JSON object become an empty one."""
    calls = []
    for call in said.calls:
        try:
            value = json.loads(call.arguments)
        except (ValueError, RecursionError):
            value = {}
        calls.append(FoundCall(call.name, storable(value) if isinstance(value, dict) else {}))
    return calls


def _with_instructions(messages: list[Message], text: str) -> list[Message]:
    if messages[0].role == "system":
        return [Message(role="system", content=f"{messages[0].content}\n\n{text}"), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def _record(role: str, text: str, start: int, stop: int, choice: Choice | None) -> TurnRecord:
    finish, seconds = (choice.finish_reason, choice.engine_seconds) if choice is not None else ("", 0.0)
    return TurnRecord(
        role=role, text=text, token_start=start, token_stop=stop, finish_reason=finish, engine_seconds=seconds
    )


def _preference(node: Node) -> tuple[int, int]:
    """Of nodes that read alike: more sampled turns behind it, then newer."""
    return sum(before.choice is not None for before in node.path()), node.index


def _aborted(node: Node) -> bool:
    return node.choice is not None and node.choice.finish_reason == "abort"
