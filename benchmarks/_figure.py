"""Small line charts as SVG for the documentation: panels side by side, values from 0 to 1, intervals as bars."""

from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, ROW = 250, 190, 34, 34, 24, 15
COLOURS = ("#1f5fbf", "#c2571a", "#3b8a3b", "#8a4fa3")


@dataclass(frozen=True)
class Line:
    """Points (x, y) in order; `bars` are (low, high) of each point, or none."""

    label: str
    points: list[tuple[float, float]]
    bars: list[tuple[float, float]] = field(default_factory=list)
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    lines: list[Line]


def draw(panels: list[Panel]) -> str:
    """One SVG. The same line has the same colour in every panel; the legend stands below."""
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    colour = {label: COLOURS[index % len(COLOURS)] for index, label in enumerate(labels)}
    width, height = WIDTH * len(panels), HEIGHT + 8 + ROW * len(labels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, panel in enumerate(panels):
        parts += [f'<g transform="translate({index * WIDTH} 0)">', *_panel(panel, colour), "</g>"]
    for index, label in enumerate(labels):
        y = HEIGHT + ROW * (index + 0.5)
        parts.append(f'<rect x="{LEFT}" y="{y}" width="12" height="4" fill="{colour[label]}"/>')
        parts.append(f'<text x="{LEFT + 17}" y="{y + 6}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, colour: dict[str, str]) -> list[str]:
    most = max((x for line in panel.lines for x, _ in line.points), default=1.0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / most * (WIDTH - LEFT - 12), TOP + (1 - y) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="14" font-weight="bold">{escape(panel.title)}</text>']
    for y in (0.0, 0.5, 1.0):
        _, at = place(0, y)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in (0.0, most / 2, most):
        at, _ = place(x, 0)
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{x:.4g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{panel.x_label}</text>')
    for line in panel.lines:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*point) for point in line.points))
        dashes = ' stroke-dasharray="4 3"' if line.dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour[line.label]}" stroke-width="1.6"{dashes}/>'
        )
        for (x, _), (low, high) in zip(line.points, line.bars, strict=False):
            (at, below), (_, above) = place(x, low), place(x, high)
            parts.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{below:.1f}" y2="{above:.1f}" '
                f'stroke="{colour[line.label]}" stroke-width="1"/>'
            )
    return parts
