"""A bar chart as SVG, by hand: no library is worth a picture with bars."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_OURS, _FLOOR = "#2b6cb0", "#a0aec0"
_ROW, _LEFT, _WIDTH = 22, 300, 460


def bars(groups: Sequence[tuple[str, Sequence[tuple[str, float, bool]], str]]) -> str:
    """Groups of bars: (title, (label, value, ours) each, unit). The longest bar of a group fills the width."""
    parts, y = [], 10
    for title, rows, unit in groups:
        y += 24
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(title)}</text>')
        y += 8
        longest = max((value for _, value, _ in rows), default=1) or 1
        for label, value, ours in rows:
            width = max(1, round(value / longest * _WIDTH))
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
            parts.append(
                f'<rect x="{_LEFT}" y="{y + 3}" width="{width}" height="{_ROW - 6}"'
                f' fill="{_OURS if ours else _FLOOR}"/>'
            )
            parts.append(f'<text x="{_LEFT + width + 6}" y="{y + 15}">{value:.3g} {escape(unit)}</text>')
            y += _ROW
    size = f'width="{_LEFT + _WIDTH + 110}" height="{y + 14}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n"
    )
