"""Evaluates the rules over one finished episode, and what the flags do to its record. Pure."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from itertools import islice

from gpu_workers.contracts.enums import UNSCORED_VERDICTS, Boundary, FlagSeverity, ReasonCode, Verdict
from gpu_workers.contracts.groups import EpisodeRecord, TamperFlag, VerdictRecord
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.contracts.text import storable
from gpu_workers.verifiers.detectors.catalogue import RULES
from gpu_workers.verifiers.detectors.probes import PROBES
from gpu_workers.verifiers.detectors.rules import Changed, Code, Name, Path, Place, Probe, Removed, Rule, Text
from gpu_workers.verifiers.detectors.source import Fact
from gpu_workers.verifiers.detectors.view import Sighting, Snippet, View, canonical, named_paths

MAX_SIGHTINGS = 20
MAX_PER_RULE = 3
MAX_FLAGS = 20
MAX_EXCERPT = 200
# Where several decide, the first of these is the reason.
PRECEDENCE = (ReasonCode.TAMPER_DETECTED, ReasonCode.FORBIDDEN_ACCESS)
_COMMANDS = re.compile(r"[;|&()`]+|\$\(")
_BY_ID = {rule.id: rule for rule in RULES}


def find_flags(task: TaskBundle, record: EpisodeRecord, files: Mapping[str, bytes]) -> list[TamperFlag]:
    """All flags of a judged episode, gravest first. `files`: its workspace at the end, without decoys."""
    view = View(task, record, files)
    flags = []
    for rule in RULES:
        severity = FlagSeverity.SUSPICION if rule.unless_passed and record.verdict is Verdict.PASS else rule.severity
        seen = {(sighting.where, sighting.line): sighting for sighting in islice(_sightings(rule, view), MAX_SIGHTINGS)}
        flags += [_flag(rule, sighting, severity) for sighting in islice(seen.values(), MAX_PER_RULE)]
    order = list(FlagSeverity)
    return sorted(flags, key=lambda flag: -order.index(flag.severity))[:MAX_FLAGS]


def apply_flags(task: TaskBundle, record: EpisodeRecord, flags: list[TamperFlag]) -> None:
    """Store the flags; a grave one fails the episode. What has no verdict for another's fault keeps none.

    What the verifier itself said stays in `verification`.
    """
    record.flags = flags
    decisive = [flag for flag in flags if flag.severity is FlagSeverity.TAMPER]
    if not decisive or record.verdict in UNSCORED_VERDICTS:
        return
    if record.verification is None:
        record.verification = VerdictRecord(
            kind=task.verifier.kind, verdict=record.verdict, score=record.reward, reason_code=record.reason_code,
            message=record.message, evidence=record.evidence,
        )  # fmt: skip
    first = min(decisive, key=lambda flag: _rank(_BY_ID[flag.rule].reason))
    record.verdict, record.reward, record.success = Verdict.FAIL, 0.0, False
    record.reason_code = _BY_ID[first.rule].reason
    record.message = f"{first.message} ({first.where})"
    record.boundary = Boundary.POLICY


def _rank(reason: ReasonCode) -> int:
    return PRECEDENCE.index(reason) if reason in PRECEDENCE else len(PRECEDENCE)


def _flag(rule: Rule, seen: Sighting, severity: FlagSeverity) -> TamperFlag:
    where = f"{seen.where}, line {seen.line}" if seen.line else seen.where
    excerpt = storable(" ".join(seen.excerpt.split()))[:MAX_EXCERPT]
    return TamperFlag(
        rule=rule.id, pattern=rule.pattern, severity=severity, message=rule.message,
        where=storable(where)[:MAX_EXCERPT], excerpt=excerpt,
    )  # fmt: skip


def _sightings(rule: Rule, view: View) -> Iterator[Sighting]:
    match rule.match:
        case Probe(name=name):
            yield from PROBES[name](view)
        case Name(globs=globs, but=but):
            paths = [path for path in view.new_files if not fnmatch(path, but)] if but else view.new_files
            yield from (s for s in _named(paths, globs) if not _is_named(rule, view, s.excerpt))
        case Changed(globs=globs):
            yield from _named(view.changed_files, globs)
        case Removed(globs=globs, alone=alone):
            gone = list(_named(view.removed_files, globs))
            if alone is (len(view.removed_files) < len(view.task.contract.files)):
                yield from gone if alone or len(gone) == len(view.removed_files) else ()
        case _:
            for snippet in _snippets(rule, view):
                yield from _in_snippet(rule, view, snippet)


def _snippets(rule: Rule, view: View) -> list[Snippet]:
    match rule.place:
        case Place.ACTION:
            return view.actions
        case Place.CANDIDATE:
            return view.candidate
        case Place.ANSWER:
            return [Snippet("answer", "text", view.record.answer)]
    return [*view.actions, *view.candidate]


def _in_snippet(rule: Rule, view: View, snippet: Snippet) -> Iterator[Sighting]:
    match rule.match:
        case Text():
            search = rule.match.regex.search
            for number, line in snippet.lines:
                found = search(line)
                if found and not _is_named(rule, view, found.groupdict().get("what") or found.group()):
                    yield Sighting(snippet.where, found.group(), number)
        case Path():
            seen: set[str] = set()
            for raw, number in named_paths(snippet):
                path = canonical(raw)
                if rule.match.but and _only_in(rule.match.but, snippet, raw, number):
                    continue
                if path not in seen and rule.match.regex.search(path) and not view.is_honest_path(path, raw):
                    seen.add(path)
                    yield Sighting(snippet.where, snippet.line(number) or raw, number)
        case Code(in_tests=in_tests):
            if snippet.is_test and not in_tests:
                return
            if rule.match.in_check and view.is_apart:
                return
            for fact in snippet.facts:
                if _matches(rule.match, fact) and not _is_named(rule, view, fact.name):
                    yield Sighting(snippet.where, snippet.line(fact.line) or fact.name, fact.line)


def _only_in(pattern: str, snippet: Snippet, raw: str, number: int) -> bool:
    """Whether all commands of a line that name a path match."""
    if snippet.kind != "shell":
        return False
    commands = [part for part in _COMMANDS.split(snippet.line(number)) if raw in part]
    return bool(commands) and all(re.match(pattern, part) for part in commands)


def _matches(wanted: Code, fact: Fact) -> bool:
    if fact.kind != wanted.kind or (wanted.at_import and not fact.at_import):
        return False
    if wanted.pattern and not re.search(wanted.pattern, fact.name):
        return False
    return not wanted.names or any(
        fact.name == name or (name.endswith((".", "_")) and fact.name.startswith(name)) or
        (name.startswith(".") and fact.name.endswith(name))
        for name in wanted.names
    )  # fmt: skip


def _is_named(rule: Rule, view: View, text: str) -> bool:
    return rule.unless_named and view.is_named(text)


def _named(paths: list[str], globs: tuple[str, ...]) -> Iterator[Sighting]:
    for path in paths:
        name = path.rpartition("/")[2]
        if any(fnmatch(path, glob) or fnmatch(name, glob) for glob in globs):
            yield Sighting(f"file {path}", name)
