"""Draws docs/assets/overview-{light,dark}.svg: `python docs/site/overview.py`."""

# ruff: noqa: E501  lines of the drawing
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "assets"
THEMES = {
    "light": {
        "page": "#ffffff", "card": "#f6f8fa", "line": "#57606a", "text": "#1f2328", "quiet": "#57606a",
        "ann": "#0969da", "snn": "#bc4c00", "bridge": "#1a7f37", "server": "#6639ba", "on": "#ffffff",
    },
    "dark": {
        "page": "#0d1117", "card": "#161b22", "line": "#8b949e", "text": "#e6edf3", "quiet": "#9198a1",
        "ann": "#4493f8", "snn": "#f0883e", "bridge": "#3fb950", "server": "#ab7df8", "on": "#0d1117",
    },
}  # fmt: skip
WIDTH, HEIGHT, CARD, LEFT, RIGHT = 960, 372, 316, 12, 632


def draw(c: dict[str, str]) -> str:
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Two clients, one with a continuous and one with a spiking network, exchange the body of a small Bridge with a server">
<style>text{{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;font-size:14px;fill:{c["text"]}}}
.b{{font-weight:600}}.q{{fill:{c["quiet"]};font-size:12.5px}}.w{{fill:{c["on"]};font-weight:600}}.m{{text-anchor:middle}}</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{c["line"]}"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" fill="{c["page"]}"/>
{client(c, LEFT, "ann", "ANN client", "phone, server", "private backbone: continuous")}
{client(c, RIGHT, "snn", "SNN client", "neuromorphic device", "private backbone: spiking")}
<g><rect x="404" y="120" width="152" height="118" rx="10" fill="{c["card"]}" stroke="{c["server"]}" stroke-width="2"/>
<text class="b m" x="480" y="150">server</text><text class="q m" x="480" y="174">averages the bodies</text>
<text class="q m" x="480" y="192">of all clients,</text><text class="q m" x="480" y="210">weighted by size</text></g>
{link(c, 330, 402)}{link(c, 630, 558)}
<text class="m b" x="480" y="272">only the Bridge body travels</text>
<text class="q m" x="480" y="292">3.93 MB each way (ResNet-18: 43.20 MB)</text>
</svg>
"""


def client(c: dict[str, str], x: int, kind: str, title: str, where: str, backbone: str) -> str:
    middle = x + CARD // 2
    signal = relu(c, x + CARD - 60) if kind == "ann" else spikes(c, x + CARD - 66)
    ports = {"ann": "ports carry continuous values", "snn": "ports carry firing rates 0, 1/T, ... 1"}[kind]
    return f"""<g><rect x="{x}" y="12" width="{CARD}" height="348" rx="12" fill="{c["card"]}" stroke="{c[kind]}" stroke-width="2"/>
<text class="b" x="{x + 18}" y="40">{title}</text><text class="q" x="{x + 18}" y="60">{where}</text>{signal}
<rect x="{x + 18}" y="76" width="{CARD - 36}" height="52" rx="8" fill="{c[kind]}"/><text class="w m" x="{middle}" y="107">{backbone}</text>
<path d="M{x + 78} 214V132" stroke="{c["line"]}" stroke-width="2" marker-end="url(#tip)"/><text class="q" x="{x + 88}" y="168">1 extraction</text><text class="q" x="{x + 88}" y="186">(Bridge teaches)</text>
<path d="M{x + 198} 132V214" stroke="{c["line"]}" stroke-width="2" marker-end="url(#tip)"/><text class="q" x="{x + 208}" y="168">2 injection</text><text class="q" x="{x + 208}" y="186">(Bridge learns)</text>
<rect x="{x + 18}" y="218" width="{CARD - 130}" height="48" rx="8" fill="{c["bridge"]}"/><text class="w m" x="{x + 18 + (CARD - 130) // 2}" y="247">Bridge body</text>
<rect x="{x + CARD - 106}" y="218" width="88" height="48" rx="8" fill="none" stroke="{c["bridge"]}" stroke-width="2"/><text class="m" x="{x + CARD - 62}" y="247">own head</text>
<text class="q m" x="{middle}" y="292">{ports}</text>
<text class="q m" x="{middle}" y="332">data, backbone and head never leave the client</text></g>"""


def link(c: dict[str, str], start: int, end: int) -> str:
    return (
        f'<path d="M{start} 168H{end}" stroke="{c["line"]}" stroke-width="2.5" marker-start="url(#tip)" '
        f'marker-end="url(#tip)"/>'
    )


def relu(c: dict[str, str], x: int) -> str:
    return f'<path d="M{x} 56h18l22-26" fill="none" stroke="{c["ann"]}" stroke-width="3"/>'


def spikes(c: dict[str, str], x: int) -> str:
    lines = "".join(f"M{x + at} 56v-{24 if at else 14}" for at in (4, 14, 30, 36, 46))
    return f'<path d="M{x} 56h50{lines}" fill="none" stroke="{c["snn"]}" stroke-width="3"/>'


for name, colours in THEMES.items():
    (FOLDER / f"overview-{name}.svg").write_text(draw(colours), encoding="utf-8")
