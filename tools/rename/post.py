import json, re, sys
from pathlib import Path
ROOT = Path(sys.argv[1])
old = json.load(open(Path(__file__).with_name("old_knobs.json"))); new = json.load(open(Path(__file__).with_name("new_knobs.json")))
pairs = dict(p for p in zip(old["run.RunConfig"], new["run.RunConfig"]) if p[0] != p[1])
dotted = {a: b for a, b in pairs.items() if "." in a}
flags = {"length-power": "length-penalty", "coverage": "coverage-penalty", "diverse": "diversity-penalty", "no-repeat": "no-repeat-ngram", "max-ratio": "max-length-a", "max-extra": "max-length-b"}
files = [p for f in ("src/regard", "tests", "benchmarks", "examples", "recipes", "docs", "tools") for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".md", ".ipynb", ".json") and "results" not in p.parts]
files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
pattern = re.compile(r"(?<![\w.])(" + "|".join(re.escape(a) for a in sorted(dotted, key=len, reverse=True)) + r")(?![\w])(?!\.\w)")
def in_string_or_prose(path, text):
    if path.suffix != ".py":
        return pattern.sub(lambda m: dotted[m.group(1)], text)
    # python: only inside string literals and comments
    import tokenize, io
    out = []; lines = text.split("\n"); edits = []
    for tok in tokenize.generate_tokens(io.StringIO(text).readline):
        if tok.type in (tokenize.STRING, tokenize.COMMENT):
            (l1, c1), (l2, c2) = tok.start, tok.end
            edits.append((l1, c1, l2, c2))
    for l1, c1, l2, c2 in reversed(edits):
        seg = "\n".join(lines[l1 - 1:l2])
        head, tail = lines[l1 - 1][:c1], lines[l2 - 1][c2:]
        body = seg[len(head):len(seg) - len(tail)] if tail else seg[len(head):]
        nb = pattern.sub(lambda m: dotted[m.group(1)], body)
        if nb != body:
            lines[l1 - 1:l2] = (head + nb + tail).split("\n")
    return "\n".join(lines)
for p in files:
    if not p.exists(): continue
    t = p.read_text()
    n = in_string_or_prose(p, t)
    n = re.sub(r"--(" + "|".join(flags) + r")(?![\w-])", lambda m: "--" + flags[m.group(1)], n)
    if n != t: p.write_text(n)

def edit(path, *subs):
    p = ROOT / path
    if not p.exists(): print("post: no", path); return
    t = p.read_text()
    for a, b in subs:
        n = re.sub(a, b, t)
        if n == t: print("post: nothing for", path, a)
        t = n
    p.write_text(t)

for p in files:
    if p.suffix in (".py", ".json", ".ipynb") and p.exists() and p.name != "parse.py":
        t0 = p.read_text()
        n = re.sub(r"""(["'])arch\1(?=\s*[:\],)])""", r"\1architecture\1", t0)
        n = re.sub(r"""(["'])start_from\1""", r"\1pretrained\1", n)
        if n != t0: p.write_text(n)
edit("src/regard/decoding/search.py", (r"forced\[sentence\]\.begin\(", "forced[sentence].initial_progress("))
edit("src/regard/view/chosen.py", (r"\n\ndef site_name\(name: str, layer: int\) -> str:\n.*?\n    return site_name\(name, layer\)\n", "\n"))
t = (ROOT / "src/regard/view/chosen.py").read_text()
t = re.sub(r"\ndef site_name\(name: str, layer: int\) -> str:\n    \"\"\".*?\"\"\"\n    return site_name\(name, layer\)\n\n", "", t, flags=re.S); (ROOT / "src/regard/view/chosen.py").write_text(t)
for f in ("src/regard/view/figures/heads.py", "src/regard/cli/figure.py"):
    t = (ROOT / f).read_text()
    m = re.search(r"from regard\.view\.chosen import ([^\n(]+)", t)
    if m:
        names = [x.strip() for x in m.group(1).split(",")]
        if "site_name" in names:
            names.remove("site_name")
            indent = re.search(r"(?m)^( *)from regard\.view\.chosen import", t).group(1)
            t = t.replace(m.group(0), ("from regard.view.chosen import " + ", ".join(names) + "\n" + indent if names else "") + "from regard.attention.sites import site_name")
            (ROOT / f).write_text(t)
edit("src/regard/server/requests.py", (r"\.source_context\b", ".context"))
edit("src/regard/pipeline/translation.py", (r"model\.settings\.places\b", "model.settings.max_positions"), (r"\bone\.made\(\)", "one.materialize()"))
edit("src/regard/training/reader_job.py", (r"self\.perception\.longest", "self.perception.max_length"), (r"self\.features\.width", "self.features.hidden_size"), (r"preset\.embedding\b", "preset.embedding_size"), (r"preset\.width\b", "preset.hidden_size"), (r"self\.perception\.tokenizer\.size\b", "self.perception.tokenizer.vocab_size"))
edit("src/regard/pipeline/attribution.py", (r"self\.model\.table\(", "self.model.embedding("))
edit("src/regard/training/distil.py", (r"config\.stack\.layers", "config.stack.num_layers"))
edit("src/regard/pipeline/heads.py", (r"found\.each - whole\.each", "found.per_example - whole.per_example"))
edit("src/regard/ready.py", (r"_answering\(\)\.vectors", "_answering().embed_texts"), (r"_answering\(\)\.pool\b", "_answering().pooler_output"), (r"_answering\(\)\.scores", "_answering().logits"))
edit("src/regard/blocks/transformer.py", (r"block\.cross\.remember", "block.cross.precompute_keys_values"))
edit("src/regard/checkpoint/reader_folder.py", (r"config\.vocabulary\b", "config.vocab_size"), (r"config\.encoder\.vocabulary\b", "config.encoder.vocab_size"))
edit("src/regard/cli/train.py", (r'"pretrained": "--from"', '"pretrained": "--from"'), (r'"architecture": "--arch"', '"architecture": "--arch"'), (r'"memory\.": "Stories"', '"memory_network.": "Stories"'))
edit("src/regard/config/tasks.py",
     (r'"architecture": ', '"architecture": '), (r'"memory\.": ', '"memory_network.": '), (r'"language\.": "language"', '"documents.": "language"'), (r'"classifier\.": ', '"rnn_classifier.": '), (r'"tagger\.": ', '"rnn_tagger.": '),
     (r'"classify\.": ', '"fine_tuning.": '), (r'"answer\.": ', '"passages.": '), (r'"distil\.": ', '"distillation.": '), (r'"task", "preset", "arch"', '"task", "preset", "architecture"'), (r'"pretrained"', '"pretrained"'),
     (r'given\.get\("arch"', 'given.get("architecture"'), (r"given\['arch'\]", "given['architecture']"))
