import json, re, ast, pickle, sys
from pathlib import Path
ROOT = Path(sys.argv[1]) if len(sys.argv)>1 else Path(".")
SRC = ROOT/"src/regard"
raw = json.load(Path(__file__).with_name("rename_map.json").open())
G, M, P = {}, {}, {}
def full(mod): 
    mod = mod.removesuffix("/__init__") if mod != "__init__" else ""
    return "regard" + ("." + mod.replace("/", ".") if mod else "")
missing=[]
cache={}
def tree(mod):
    if mod not in cache:
        p = SRC/(mod+".py")
        if not p.exists(): p = SRC/mod/"__init__.py"
        cache[mod] = ast.parse(p.read_text()) if p.exists() else None
    return cache[mod]
def find(mod, name):
    t = tree(mod)
    if t is None: return None
    parts = name.split(".")
    body = t.body
    node = None
    for part in parts:
        node = next((n for n in body if isinstance(n,(ast.FunctionDef,ast.ClassDef)) and n.name==part), None)
        if node is None: return None
        body = node.body
    return node
def top(mod, name):
    t = tree(mod)
    if t is None: return False
    for n in t.body:
        if isinstance(n,(ast.FunctionDef,ast.ClassDef)) and n.name==name: return True
        if isinstance(n,(ast.Assign,ast.AnnAssign)):
            for x in ast.walk(n.targets[0] if isinstance(n,ast.Assign) else n.target):
                if isinstance(x,ast.Name) and x.id==name: return True
        if isinstance(n,(ast.If,ast.Try)):
            return True
    return False
newclass = {}
for mod, old, new in raw["classes"]:
    G[f"{full(mod)}.{old}"] = new
    newclass[(mod, old)] = new
param_report=[]
for mod, old, new, sig, note in raw["functions"]:
    if "." in old:
        cls, attr = old.split(".")
        if attr != "__init__" and attr != new: M[(f"{full(mod)}.{cls}", attr)] = new
    elif old != new:
        G[f"{full(mod)}.{old}"] = new
    m = re.search(r"\((.*)\)", sig)
    node = find(mod, old)
    if m and isinstance(node, ast.FunctionDef) and "…" not in m.group(1):
        want = [x.strip().lstrip("*") for x in m.group(1).split(",")]
        want = [w for w in want if w and w != "/"]
        a = node.args
        have = [x.arg for x in [*a.posonlyargs, *a.args]]
        if "." in old and have and have[0] in ("self","cls"): have = have[1:]
        if a.vararg: have.append(a.vararg.arg)
        have += [x.arg for x in a.kwonlyargs]
        if a.kwarg: have.append(a.kwarg.arg)
        if len(want)==len(have):
            for h,w in zip(have,want):
                if h!=w and h not in want and w not in have: P[(f"{full(mod)}.{old}", h)] = w
                elif h!=w: param_report.append((mod,old,have,want))
        elif want: param_report.append((mod,old,have,want))
def line_rules(path):
    for line in Path(path).read_text().splitlines():
        line=line.split("#")[0].strip()
        if not line: continue
        head, _, rest = line.partition(":")
        yield head.split(), [x.split(">") for x in rest.split()]
for head, pairs in line_rules(Path(__file__).with_name("members.txt")):
    mod, cls = head
    if find(mod, cls) is None: missing.append((mod, cls)); continue
    for o,n in pairs: M[(f"{full(mod)}.{cls}", o)] = n
for head, pairs in line_rules(Path(__file__).with_name("constants.txt")):
    mod, = head
    for o,n in pairs:
        if not top(mod,o): missing.append((mod,o)); continue
        G[f"{full(mod)}.{o}"] = n
for k in [k for k in P if k[0].startswith("regard.cli.")]: del P[k]
for k in [("regard.checkpoint.folder.publish_model","named"),("regard.data.labelled.hold_out_texts","rows"),("regard.tasks.stories.predict_answers","k")]: P.pop(k, None)
P[("regard.data.labelled.Labelled.marks","classes")]="label_names"; P[("regard.pipeline.reader_seeing.layer_mix_attention","shares")]="layer_weights"
P[("regard.tasks.entities.most_frequent_tags","asked")]="target_words"; P[("regard.training.looked.delete_snapshots_after","after")]="last_step"
G["regard.attention.noise.apply_dropout"]="apply_dropout"
M[("regard.tasks.masking.TokenMasker","hide")]="mask_tokens"
M.pop(("regard.blocks.transformer.DecoderBlock","decode"),None)
M.pop(("regard.pipeline.classification.Label","chances"),None); M.pop(("regard.training.reader_job.RnnTextExperiment","longest"),None); M.pop(("regard.training.reader_job.ReaderJob","width"),None); M.pop(("regard.training.keeping.BaseExperiment","concluded"),None)
M[("regard.pipeline.filling.Prediction","token")]="token_id"
G["regard.config.tasks.usage_hint"]="usage_hint"
M[("regard.engine.model.EngineModel","read")]="run_encoder"
for c in ("regard.tasks.tagging.EncodedSentences","regard.tasks.reader_tagging.RnnSentences"): M[(c,"told")]="iter_token_logits"
for c in ("regard.ready.SwitchingEncoder","regard.engine.encoder.EncoderEngine"):
    M[(c,"vectors")]="embed_texts"; M[(c,"pool")]="pooler_output"; M[(c,"scores")]="logits"
pickle.dump({"globals":G,"members":M,"params":P}, Path(__file__).with_name("rules.pkl").open("wb"))
print(len(G),len(M),len(P)); print("missing",missing)
for r in param_report: print(r)
