import io, json, re, sys, tokenize
from pathlib import Path
def replace_literals(path, mapping, show=True):
    p = Path(path); text = p.read_text(); lines = text.split("\n"); edits = []
    for tok in tokenize.generate_tokens(io.StringIO(text).readline):
        if tok.type == tokenize.STRING and tok.start[0] == tok.end[0]:
            s = tok.string
            m = re.fullmatch(r"""([rfRF]?)(["'])(.*)\2""", s)
            if m and m.group(3) in mapping:
                edits.append((tok.start[0], tok.start[1], tok.end[1], m.group(1) + m.group(2) + mapping[m.group(3)] + m.group(2)))
    for line, a, b, new in sorted(edits, reverse=True):
        if show: print(f"{path}:{line}: {lines[line-1].strip()[:110]}  => {new}")
        lines[line-1] = lines[line-1][:a] + new + lines[line-1][b:]
    p.write_text("\n".join(lines))
old = json.load(open(Path(__file__).with_name("old_knobs.json"))); new = json.load(open(Path(__file__).with_name("new_knobs.json")))
def config_map(*names):
    out = {}
    o = list(old); n = list(new)
    for name in names:
        i = o.index(name)
        out |= {a: b for a, b in zip(old[o[i]], new[n[i]]) if a != b}
    return out
