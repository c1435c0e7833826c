"""A gate's verdict in words, from its tiles: what blocks, by how much, and what would decide. Pure."""

from apps.promotions.report import GateReport, Status, Tile

_BAD_FIRST = {Status.FAIL: 0, Status.INCONCLUSIVE: 1, Status.NOT_MEASURED: 2}


def headline(report: GateReport) -> str:
    """One sentence."""
    if report.verdict is Status.PASS:
        return _passed(report)
    success = next((tile for tile in report.tiles if tile.name == "success"), None)
    if success is None or (report.blocks and report.verdict is Status.INCONCLUSIVE):
        return f"Blocked: {report.blocks[0]}"
    if success.verdict is Status.FAIL:
        return _not_better(success)
    blocking = sorted(_blocking(report), key=lambda tile: _BAD_FIRST[tile.verdict])
    if blocking[0].name != "success":
        return f"Blocked: {_against_margin(blocking[0])}{_more(blocking[0])}"
    better = (success.estimate or 0.0) > (success.margin or 0.0)
    start = "Probably better, but this evidence cannot say so yet" if better else "No gain is shown by this evidence"
    return f"{start}{_more(success)}"


def lead(report: GateReport) -> str:
    """A few sentences with the numbers behind the headline."""
    success = next((tile for tile in report.tiles if tile.name == "success"), None)
    if success is None:
        return "No pair of attempts can be compared."
    parts = [f"Success changes by {number(success, success.estimate)} points {interval(success)} on {success.n} tasks."]
    parts += [
        f"{_sentence(_against_margin(tile))}{_more(tile)}." for tile in _blocking(report) if tile.name != "success"
    ]
    if report.verdict is Status.PASS:
        names = [tile.title.lower() for tile in report.tiles if tile.required and tile.name != "success"]
        parts.append(
            f"{_sentence(_listing(names))} stay inside their margins." if names else "No guardrail is required."
        )
        if worse := [_price(tile) for tile in _worse(report)]:
            parts.append(f"Worse all the same: {_listing(worse)}.")
    parts += [f"{_sentence(block)}." for block in report.blocks]
    unmeasured = [tile.title.lower() for tile in report.tiles if tile.verdict is Status.NOT_MEASURED]
    if unmeasured:
        parts.append(f"Not measured: {_listing(unmeasured)}.")
    return " ".join(parts)


def number(tile: Tile, value: float | None) -> str:
    """A value with the sign or sharpness its unit asks for."""
    if value is None:
        return "unbounded"
    match tile.unit:
        case "pp":
            return f"{value:+.1f}".replace("-", "−")
        case "×":
            return f"{value:.2f}"
        case "turns":
            return f"{value:+.2f}".replace("-", "−")
    return f"{value:.1f}"


def interval(tile: Tile) -> str:
    return f"[{number(tile, tile.low)}, {number(tile, tile.high)}]"


def _passed(report: GateReport) -> str:
    worse = _worse(report)
    if not worse:
        return "Better on held-out tasks, and nothing else got worse"
    beyond = [tile.title.lower() for tile in worse if tile.verdict is not Status.PASS]
    if not beyond:
        return "Better on held-out tasks, at a price inside the margins"
    return f"Better on held-out tasks, but {_listing(beyond)} got worse"


def _worse(report: GateReport) -> list[Tile]:
    """What surely got worse: its whole interval is on the side of harm, whatever is allowed."""
    tiles = [tile for tile in report.tiles if tile.name not in ("success", "verifier") and tile.low is not None]
    return [tile for tile in tiles if (tile.low or 0.0) > (1.0 if tile.unit == "×" else 0.0)]


def _price(tile: Tile) -> str:
    unit = {"pp": " pp", "turns": " turns", "%": " %"}.get(tile.unit, "")
    allowed = "inside its margin" if tile.verdict is Status.PASS else "not required"
    sign = "× " if tile.unit == "×" else ""
    return f"{tile.title.lower()} ({sign}{number(tile, tile.estimate)}{unit}, {allowed})"


def _blocking(report: GateReport) -> list[Tile]:
    return [tile for tile in report.tiles if tile.required and tile.verdict is not Status.PASS]


def _not_better(success: Tile) -> str:
    if not success.margin:
        return f"Worse on held-out tasks: at most {number(success, success.high)} points"
    return (
        f"The gain is too small: at most {number(success, success.high)} points, "
        f"{number(success, success.margin)} are asked for"
    )


def _against_margin(tile: Tile) -> str:
    name, unit = tile.title.lower(), {"pp": " pp", "×": " ×", "turns": " turns", "%": " %"}.get(tile.unit, "")
    if tile.verdict is Status.NOT_MEASURED:
        return f"{name}: required, but not measured"
    margin = number(tile, tile.margin).lstrip("+")
    if tile.verdict is Status.FAIL:
        return f"{name} got worse: lower bound {number(tile, tile.low)}{unit} > margin {margin}{unit}"
    if tile.high is not None and tile.margin is not None and tile.high <= tile.margin:
        return f"{name}: too uncertain for the ceiling, {tile.words}"
    return f"{name} upper bound {number(tile, tile.high)}{unit} > margin {margin}{unit}"


def _more(tile: Tile) -> str:
    if tile.verdict is not Status.INCONCLUSIVE or tile.more_tasks is None:
        return ""
    noun = "label" if tile.name == "verifier" else "task"
    plural = "" if tile.more_tasks == 1 else "s"
    return f"; about {tile.more_tasks:,} more {noun}{plural} would decide"


def _listing(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
