"""The losses of a log as SVG. usage: python3 -m train.plot LOG.jsonl OUT.svg"""
import json
import math
import sys

W, H, LEFT, TOP = 760, 380, 56, 24
COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7d5ba6", "#b8860b", "#4a4e69", "#d1495b", "#2a9d8f")


def curves(lines):
    """-> {name: [(million tokens, loss)]}, million tokens at which phase B began"""
    out, border = {}, None
    for d in lines:
        x = d.get("tokens", 0) / 1e6
        if d.get("phase") == "B" and border is None:
            border = x
        if "loss" in d and d.get("phase") in "AB":
            out.setdefault("training", []).append((x, d["loss"]))
        for k, v in d.get("val", {}).items() if d.get("phase") in ("A", "B") else ():
            out.setdefault("held out: " + k, []).append((x, v))
    return out, border


def svg(lines):
    data, border = curves(lines)
    points = [p for c in data.values() for p in c]
    if not points:
        raise ValueError("the log has no losses")
    right = max(x for x, _ in points) or 1
    low, high = math.floor(min(y for _, y in points)), min(8, math.ceil(max(y for _, y in points)))
    sx = lambda x: LEFT + x / right * (W - LEFT - 190)
    sy = lambda y: TOP + (high - min(y, high)) / max(high - low, 1) * (H - TOP - 50)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
           f'<rect width="{W}" height="{H}" fill="#fff"/>']
    for y in range(low, high + 1):
        out.append(f'<path d="M{LEFT} {sy(y):.1f}H{sx(right):.1f}" stroke="#ddd"/><text x="{LEFT - 8}" y="{sy(y) + 4:.1f}" text-anchor="end">{y}</text>')
    for i in range(5):
        x = right * i / 4
        out.append(f'<text x="{sx(x):.1f}" y="{H - 30}" text-anchor="middle">{x:.0f}</text>')
    out.append(f'<text x="{sx(right / 2):.1f}" y="{H - 10}" text-anchor="middle">million tokens</text><text x="8" y="14">loss, nats per token</text>')
    if border:
        out.append(f'<path d="M{sx(border):.1f} {TOP}V{H - 50}" stroke="#888" stroke-dasharray="4 3"/><text x="{sx(border) + 4:.1f}" y="{TOP + 10}">phase B</text>')
    for i, (name, c) in enumerate(data.items()):
        color, y = COLORS[i % len(COLORS)], TOP + 14 + 18 * i
        marks = "".join(f'<circle cx="{sx(x):.1f}" cy="{sy(v):.1f}" r="3" fill="{color}"/>' for x, v in c) if name != "training" else ""
        out.append(f'<polyline fill="none" stroke="{color}" points="' + " ".join(f"{sx(x):.1f},{sy(v):.1f}" for x, v in c) + f'"/>{marks}'
                   f'<path d="M{W - 180} {y}h18" stroke="{color}" stroke-width="3"/><text x="{W - 156}" y="{y + 4}">{name} {c[-1][1]:.2f}</text>')
    return "\n".join(out) + "\n</svg>\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf8") as f:
        text = svg([json.loads(l) for l in f if l.strip()])
    with open(sys.argv[2], "w", encoding="utf8") as f:
        f.write(text)
