"""The chat template of a model as token ids: whole prompts, and what follows an assistant turn."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from gpu_workers.contracts.tasks import Message
from gpu_workers.sessions.formats import guess_format

_PROBE = "\u2402probe\u2403"  # cannot occur in a template's own text


class TemplateError(ValueError):
    """A model folder or a conversation that cannot be rendered; says what is missing."""


@dataclass(frozen=True)
class TrainingTokens:
    """A rendered conversation; mask is 1 on the tokens a policy would have sampled."""

    ids: list[int]
    mask: list[int]


class ChatTemplate:
    """Renders messages with the model's own Jinja template and tokeniser. Safe to share between threads."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self._tokenizer = _load_tokenizer(model_dir)
        config = _read_json(model_dir / "tokenizer_config.json")
        self._names = {
            name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        source = _template_source(model_dir, config)
        self._template = _compile_template(source)
        self.tool_format = guess_format(source)
        self.eos_id = self._find_eos()
        self._special = _special_tokens(self._tokenizer)
        self._eos_text = self._names["eos_token"]
        self.has_tool_role = True
        self.has_tool_role = self._accepts_tool_role()
        self.takes_tools = self._writes_tools()
        self.context_limit = _context_limit(model_dir)
        self._longest_token = max(map(len, self._tokenizer.get_vocab()), default=1)

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Ids of a conversation, ending in the generation prompt of the next assistant turn.

        `tools` in OpenAI's format; only for a template that `takes_tools`.
        """
        return self._encode(self._render(messages, generate=True, tools=tools))

    def suffix(self, messages: Sequence[Message]) -> list[int]:
        """Ids that follow the end-of-turn token of an assistant turn: `messages`, then the generation prompt.

        Sampled ids stay as they are; only these are added, so a conversation is never re-encoded.
        """
        if not messages:
            raise TemplateError("a suffix needs at least one message")
        opening = [Message(role="user", content="u"), Message(role="assistant", content=_PROBE)]
        text = self._render([*opening, *messages], generate=True)
        _, _, tail = text.partition(_PROBE)
        close, found, rest = tail.partition(self._eos_text)
        if not found or close.strip():
            raise TemplateError(
                f"{self.model_dir}: the chat template does not end an assistant turn with {self._eos_text}"
            )
        return self._encode(rest)

    def render_training(self, prompt: Sequence[Message], completion: Sequence[Message]) -> TrainingTokens:
        """Ids and mask of a supervised example, laid out exactly as a session would have grown."""
        ids = self.render_prompt(prompt)
        mask = [0] * len(ids)
        pending: list[Message] = []
        for message in completion:
            if message.role != "assistant":
                pending.append(message)
                continue
            if pending:
                between = self.suffix(pending)
                ids, mask, pending = ids + between, mask + [0] * len(between), []
            turn = [*self.encode(message.content), self.eos_id]
            ids, mask = ids + turn, mask + [1] * len(turn)
        if pending or not completion:
            raise TemplateError("a completion must end in an assistant message")
        return TrainingTokens(ids=ids, mask=mask)

    def written_turn(self, content: str, marker: str = "", calls: str = "") -> list[int]:
        """Ids of an assistant turn that no policy sampled, with its end; `marker` may be a special token."""
        marker_id = self._tokenizer.token_to_id(marker) if marker else None
        between = [int(marker_id)] if marker_id is not None else self.encode(marker)
        return [*self.encode(content), *between, *self.encode(calls), self.eos_id]

    def can_fit(self, num_characters: int) -> bool:
        """Whether text of this length may be within the context: encoding what cannot be would hold everybody up."""
        return num_characters <= self.context_limit * self._longest_token

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; the text of a special token stays text."""
        return self._encode(self._neutralise(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_marked(self, ids: Sequence[int]) -> str:
        """Text of a turn with its special tokens but the last one's, where it ends the turn."""
        turn = ids[:-1] if ids and ids[-1] == self.eos_id else ids
        return str(self._tokenizer.decode(list(turn), skip_special_tokens=False))

    def without_special(self, text: str) -> str:
        """The text without whatever spells a special token."""
        for token in self._special:
            text = text.replace(token, "")
        return text

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Text of every token by itself, special ones included, for display."""
        return [str(self._tokenizer.decode([token], skip_special_tokens=False)) for token in ids]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _neutralise(self, text: str) -> str:
        # Text from tools and users must not be able to close a turn or open another one.
        for token in self._special:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _render(self, messages: Sequence[Message], *, generate: bool, tools: Sequence[dict[str, Any]] = ()) -> str:
        plain = [{"role": m.role, "content": self._neutralise(m.content)} for m in messages]
        if not self.has_tool_role:
            plain = [_as_user(m) if m["role"] == "tool" else m for m in plain]
        try:
            shown = {"tools": self._neutral(list(tools))} if tools else {}
            return str(self._template.render(messages=plain, add_generation_prompt=generate, **shown, **self._names))
        except (jinja2.TemplateError, TemplateError) as error:
            raise TemplateError(f"{self.model_dir}: the chat template refused the conversation: {error}") from error

    def _neutral(self, value: Any) -> Any:
        """`_neutralise` of every text inside."""
        if isinstance(value, str):
            return self._neutralise(value)
        if isinstance(value, dict):
            return {self._neutralise(str(key)): self._neutral(item) for key, item in value.items()}
        return [self._neutral(item) for item in value] if isinstance(value, list) else value

    def _writes_tools(self) -> bool:
        function = {"name": "probe", "description": _PROBE, "parameters": {"type": "object", "properties": {}}}
        try:
            text = self._render([Message(role="user", content="u")], generate=True, tools=[_as_tool(function)])
        except (TemplateError, TypeError):
            return False
        return _PROBE in text

    def _accepts_tool_role(self) -> bool:
        turns = [("user", "u"), ("assistant", "a"), ("tool", _PROBE)]
        try:
            return _PROBE in self._render([Message(role=role, content=text) for role, text in turns], generate=True)
        except TemplateError:
            return False

    def _find_eos(self) -> int:
        text = self._names["eos_token"]
        found = self._tokenizer.token_to_id(text) if text else None
        if found is None:
            raise TemplateError(
                f"{self.model_dir}: eos_token of tokenizer_config.json is missing or not in the vocabulary"
            )
        return int(found)


@lru_cache(maxsize=8)
def load_template(model_dir: Path) -> ChatTemplate:
    """The template of a model folder, kept for the life of the process."""
    return ChatTemplate(model_dir)


def find_template(model_path: str, models_dir: Path) -> ChatTemplate:
    """Template of the model an engine serves: its own folder where that is readable here, else ours of that name."""
    folders = [Path(model_path), models_dir / Path(model_path).name]
    folder = next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)
    if folder is None:
        raise TemplateError(f"no tokenizer for the engine's model {model_path!r}: put its files into {folders[1]}")
    return load_template(folder)


def _as_tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _as_user(message: dict[str, str]) -> dict[str, str]:
    return {"role": "user", "content": f"Result: {message['content']}"}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TemplateError(f"{path} is missing: the model folder is not complete") from error
    except json.JSONDecodeError as error:
        raise TemplateError(f"{path} is not JSON: {error}") from error
    return data


def _load_tokenizer(model_dir: Path) -> Tokenizer:
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise TemplateError(f"{path} is missing: the model folder is not complete")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _template_source(model_dir: Path, config: dict[str, Any]) -> str:
    path = model_dir / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        raise TemplateError(f"{model_dir} has no chat template (chat_template.jinja or tokenizer_config.json)")
    return source


def _compile_template(source: str) -> jinja2.Template:
    # Rendered as plain text for a tokeniser, never as HTML: escaping would change what the policy reads.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.globals["raise_exception"] = _raise_exception
    environment.filters["tojson"] = _to_json  # Jinja's own escapes <, > and & for HTML
    return environment.from_string(source)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _token_text(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("content", ""))
    return value or ""


def _special_tokens(tokenizer: Tokenizer) -> tuple[str, ...]:
    added = tokenizer.get_added_tokens_decoder().values()
    return tuple(sorted((t.content for t in added if t.special and len(t.content) > 1), key=len, reverse=True))


def _context_limit(model_dir: Path) -> int:
    return int(_read_json(model_dir / "config.json").get("max_position_embeddings", 2048))
