"""Move modules and symbols of the package to a new layout; rewrite every import.

move.py ROOT modules.txt   — each line: `new/module < old/a old/b:Sym1,Sym2 …` (all but claimed symbols where none are named)
A line `! old/module` leaves a module out (deleted beforehand). Modules without a line stay.
"""
from __future__ import annotations
import ast, re, subprocess, sys
from collections import defaultdict, OrderedDict
from pathlib import Path

ROOT = Path(sys.argv[1]); SPEC = Path(sys.argv[2])
SRC = ROOT / "src"
BASE = "regard"

def path_of(module: str) -> Path:
    rel = module.replace(".", "/")
    package = SRC / rel / "__init__.py"
    return package if package.exists() else SRC / (rel + ".py")

modules: dict[str, str] = {}
for p in sorted((SRC / BASE).rglob("*.py")):
    parts = list(p.relative_to(SRC).with_suffix("").parts)
    if parts[-1] == "__init__": parts = parts[:-1]
    modules[".".join(parts)] = p.read_text()

class Item:
    def __init__(self, names, text, node, kind): self.names, self.text, self.node, self.kind = names, text, node, kind

def names_of(node):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): return [node.name]
    out = []
    if isinstance(node, ast.Assign):
        for t in node.targets: out += [x.id for x in ast.walk(t) if isinstance(x, ast.Name)]
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and isinstance(node.target, ast.Name): out = [node.target.id]
    elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
        for x in ast.walk(node):
            if isinstance(x, (ast.FunctionDef, ast.ClassDef)): out.append(x.name)
            elif isinstance(x, ast.Assign):
                for t in x.targets: out += [y.id for y in ast.walk(t) if isinstance(y, ast.Name)]
    elif isinstance(node, ast.TypeAlias) if hasattr(ast, "TypeAlias") else False:
        out = [node.name.id]
    return out

class Mod:
    def __init__(self, name, text):
        self.name, self.text = name, text
        self.lines = text.split("\n")
        self.tree = ast.parse(text)
        self.doc = ast.get_docstring(self.tree, clean=False)
        self.imports: dict[str, tuple] = {}   # bound name -> (kind, module, attr, is_type_checking)
        self.items: list[Item] = []
        body = self.tree.body
        previous_end = 0
        for index, node in enumerate(body):
            start = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])])
            first = start
            while first - 2 >= previous_end and self.lines[first - 2].lstrip().startswith("#"): first -= 1
            end = node.end_lineno
            if index == 0 and self.doc is not None:
                previous_end = end; continue
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.add_import(node, False); previous_end = end; continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                for x in node.body: self.add_import(x, True)
                previous_end = end; continue
            self.items.append(Item(names_of(node), "\n".join(self.lines[first - 1:end]), node, type(node).__name__))
            previous_end = end
        self.defined = {n: i for i in self.items for n in i.names}
    def add_import(self, node, tc):
        if isinstance(node, ast.Import):
            for a in node.names:
                bound = a.asname or a.name.split(".")[0]
                self.imports[bound] = ("import", a.name, a.asname, tc)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "__future__": return
            for a in node.names:
                self.imports[a.asname or a.name] = ("from", node.module, (a.name, a.asname), tc)

mods = {n: Mod(n, t) for n, t in modules.items()}
full = lambda m: BASE + "." + m.strip("/").replace("/", ".")
claimed: dict[tuple, str] = {}
plan: "OrderedDict[str, list]" = OrderedDict()
for line in SPEC.read_text().splitlines():
    line = line.split("#")[0].strip()
    if not line: continue
    new, _, olds = line.partition("<")
    new = full(new.strip())
    parts = []
    for word in olds.split():
        old, _, syms = word.partition(":")
        old = full(old)
        if old not in mods: sys.exit(f"no module {old}")
        if syms:
            for s in syms.split(","):
                if s not in mods[old].defined: sys.exit(f"{old} has no {s}: {sorted(mods[old].defined)}")
                claimed[(old, s)] = new
        parts.append((old, syms.split(",") if syms else None))
    plan[new] = parts
planned = {old for parts in plan.values() for old, _ in parts}
home: dict[tuple, str] = {}       # (old module, symbol) -> new module
content: dict[str, list] = defaultdict(list)   # new module -> [(old module, item)]
for new, parts in plan.items():
    for old, syms in parts:
        for item in mods[old].items:
            mine = any(claimed.get((old, n)) == new for n in item.names) if syms else not any((old, n) in claimed for n in item.names)
            if mine:
                content[new].append((old, item))
                for n in item.names: home[(old, n)] = new
for old in mods:
    whole = [new for new, parts in plan.items() if (old, None) in parts]
    if old in planned and not whole:
        # only symbols claimed: the rest stays where it is
        rest = [i for i in mods[old].items if not any((old, n) in claimed for n in i.names)]
        if rest or mods[old].name in plan: 
            for i in rest:
                content[old].append((old, i))
                for n in i.names: home[(old, n)] = old
        continue
    if old not in planned:
        for i in mods[old].items:
            content[old].append((old, i))
            for n in i.names: home[(old, n)] = old
main_home: dict[str, str] = {}     # old module -> new module where most of it went (for module objects)
for old in mods:
    homes = [home[(old, n)] for i in mods[old].items for n in i.names if (old, n) in home]
    main_home[old] = max(set(homes), key=homes.count) if homes else next((new for new, parts in plan.items() if any(o == old for o, _ in parts)), old)
split = {old for old in mods if len({home[(old, n)] for i in mods[old].items for n in i.names if (old, n) in home}) > 1}

def origin(module: str, name: str, depth=0):
    """(module, name) where a symbol of the package is defined, following re-exports; or None for a submodule."""
    m = mods.get(module)
    if m is None or depth > 8: return None
    if name in m.defined: return (module, name)
    if name in m.imports:
        kind, mod, what, _ = m.imports[name]
        if kind == "from" and mod and mod.startswith(BASE):
            return origin(mod, what[0], depth + 1) or ("module", f"{mod}.{what[0]}") if f"{mod}.{what[0]}" not in mods else ("module", f"{mod}.{what[0]}")
    return None

def new_import(module: str, name: str, keep_reexport=True):
    """New ('from' module, name) of `from module import name`."""
    if f"{module}.{name}" in mods and (module not in mods or name not in mods[module].defined):
        target = main_home[f"{module}.{name}"]
        return target.rsplit(".", 1)[0], target.rsplit(".", 1)[1], True
    m = mods.get(module)
    if m is None: return module, name, False
    if name in m.defined:
        return home[(module, name)], name, False
    if name in m.imports:   # a re-export
        is_package = path_of(module).name == "__init__.py"
        if is_package and module not in planned and keep_reexport: return module, name, False
        kind, mod, what, _ = m.imports[name]
        if kind == "from" and mod.startswith(BASE): return new_import(mod, what[0])
        return mod, what[0], False
    if is_lazy(module): return main_home.get(module, module), name, False
    print("?? cannot resolve", module, name)
    return main_home.get(module, module), name, False

def is_lazy(module):
    return "__getattr__" in mods[module].defined

problems = []

def rewrite_text(text: str, module_ctx: str | None, offset_names: dict, where: str) -> str:
    """Rewrite imports of the package inside a text (item or file); returns new text. Renamed module objects are collected."""
    tree = ast.parse(text)
    lines = text.split("\n")
    replacements = []   # (start line, end line, new lines)
    renames = {}
    parents = {}
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node): parents[child] = node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and (node.module == BASE or node.module.startswith(BASE + ".")):
            groups = OrderedDict()
            for a in node.names:
                mod, name, is_module = new_import(node.module, a.name)
                bound = a.asname or a.name
                if module_ctx is not None and mod == module_ctx and not is_module:
                    if a.asname and a.asname != name: problems.append((where, f"self import as {a.asname}"))
                    continue
                asname = a.asname
                if is_module and not a.asname and name != a.name:
                    renames[a.name] = name
                if not is_module and not asname and name != a.name: asname = a.name
                groups.setdefault(mod, []).append(name + (f" as {asname}" if asname and asname != name else ""))
                if is_module and f"{node.module}.{a.name}" in split: problems.append((where, f"module object of split module {node.module}.{a.name}"))
            indent = " " * node.col_offset
            new = []
            for mod, names in groups.items():
                new.append(f"{indent}from {mod} import {', '.join(names)}" if len(", ".join(names)) < 90 else f"{indent}from {mod} import ({', '.join(names)})")
            if not new:
                block = parents[node]
                body = next((b for b in (getattr(block, f, None) for f in ("body", "orelse", "handlers", "finalbody")) if isinstance(b, list) and node in b), [])
                if len(body) == 1: new = [indent + "pass"]
            replacements.append((node.lineno, node.end_lineno, new))
        elif isinstance(node, ast.Import):
            for a in node.names:
                if a.name.startswith(BASE + ".") and a.name in mods and main_home[a.name] != a.name:
                    problems.append((where, f"import {a.name}"))
    for start, end, new in sorted(replacements, reverse=True): lines[start - 1:end] = new
    text = "\n".join(lines)
    if renames: text = rename_names(text, renames, where)
    return text

def rename_names(text, renames, where):
    tree = ast.parse(text)
    lines = text.split("\n")
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    for old, new in renames.items():
        if new in bound: problems.append((where, f"module {old} -> {new} clashes"))
    spots = [(n.lineno, n.col_offset, n.id) for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in renames]
    for line, col, name in sorted(spots, reverse=True):
        raw = lines[line - 1].encode()
        if raw[col:col + len(name)].decode() != name: problems.append((where, f"position of {name} line {line}")); continue
        lines[line - 1] = (raw[:col] + renames[name].encode() + raw[col + len(name):]).decode()
    return "\n".join(lines)

def used_names(node):
    out = set()
    for x in ast.walk(node):
        if isinstance(x, ast.Name): out.add(x.id)
        elif isinstance(x, ast.Constant) and isinstance(x.value, str) and re.fullmatch(r"[A-Za-z_][\w.\[\], |]*", x.value):
            out |= set(re.findall(r"[A-Za-z_]\w*", x.value)) & {w for w in re.findall(r"[A-Za-z_]\w*", x.value) if w[0].isupper()}
    return out

written: dict[str, str] = {}
for new in sorted(set(content) | set(plan)):
    parts = content.get(new, [])
    olds = list(OrderedDict.fromkeys([o for o, _ in parts] or [o for o, _ in plan.get(new, [])] or [new]))
    if olds == [new] and new not in plan and not any(k[0] == new for k in claimed):
        written[new] = None   # stays: rewritten as a file
        continue
    docs = [mods[o].doc for o in olds if mods[o].doc]
    doc = docs[0] if docs else None
    if doc and len(docs) > 1:
        doc = doc.rstrip() + "\n\n" + "\n\n".join(d.strip() for d in docs[1:]) + "\n"
    runtime, checking, plain = OrderedDict(), OrderedDict(), []
    names_here = defaultdict(list)
    for o, item in parts:
        for n in item.names: names_here[n].append(o)
    for n, os_ in names_here.items():
        if len(set(os_)) > 1: problems.append((new, f"name {n} from {sorted(set(os_))}"))
    body = []
    aliases = {}
    for o, item in parts:
        text = item.text
        renames = {}
        for n in sorted(used_names(item.node)):
            if n in item.names: continue
            m = mods[o]
            if n in m.defined:
                h = home[(o, n)]
                if h != new: runtime.setdefault(h, set()).add(n)
            elif n in m.imports:
                kind, mod, what, tc = m.imports[n]
                bucket = checking if tc else runtime
                if kind == "import":
                    plain.append((f"import {mod}" + (f" as {what}" if what else ""), tc))
                elif mod.startswith(BASE):
                    nm, nn, is_module = new_import(mod, what[0])
                    if is_module and f"{mod}.{what[0]}" in split: problems.append((new, f"module object of split {mod}.{what[0]} in {o}"))
                    if is_module:
                        if what[1]: bucket.setdefault(nm, set()).add(f"{nn} as {what[1]}")
                        else:
                            bucket.setdefault(nm, set()).add(nn)
                            if nn != n: renames[n] = nn
                    elif nm == new:
                        if what[1] and what[1] != nn: renames[n] = nn
                    else:
                        bucket.setdefault(nm, set()).add(nn + (f" as {n}" if n != nn else ""))
                        if n != nn: aliases[n] = nn
                else:
                    bucket.setdefault(mod, set()).add(what[0] + (f" as {what[1]}" if what[1] else ""))
        text = rewrite_text(text, new, {}, f"{new} ({o})")
        if renames: text = rename_names(text, renames, f"{new} ({o})")
        # names of doctests are strings: rewritten later by the general pass
        body.append((item, text))
    for mod in list(checking):
        checking[mod] -= runtime.get(mod, set())
    head = []
    if doc is not None: head.append('"""' + doc + '"""')
    head.append("from __future__ import annotations")
    imports = sorted({p for p, tc in plain if not tc})
    for mod, names in runtime.items(): imports.append(f"from {mod} import ({', '.join(sorted(names))})")
    tc_plain = sorted({p for p, tc in plain if tc})
    tc_imports = tc_plain + [f"from {mod} import ({', '.join(sorted(names))})" for mod, names in checking.items() if names]
    if tc_imports:
        imports.append("from typing import TYPE_CHECKING")
    head.append("\n".join(imports))
    if tc_imports: head.append("if TYPE_CHECKING:\n" + "\n".join("    " + i for i in tc_imports))
    chunks = []
    previous = None
    for item, text in body:
        sep = "\n" if previous in ("Assign", "AnnAssign") and item.kind in ("Assign", "AnnAssign") else "\n\n\n"
        chunks.append((sep if chunks else "") + text)
        previous = item.kind
    written[new] = "\n\n".join(head) + "\n\n\n" + "".join(chunks) + "\n"

# whole files that stay: rewrite their imports
for new, text in list(written.items()):
    if text is None:
        written[new] = rewrite_text(mods[new].text, new, {}, new)
others = [p for folder in ("tests", "benchmarks", "examples", "recipes", "docs", "tools") for p in sorted((ROOT / folder).rglob("*.py"))]
if (ROOT / "conftest.py").exists(): others.append(ROOT / "conftest.py")
other_texts = {p: rewrite_text(p.read_text(), None, {}, str(p)) for p in others}

# dotted strings, doctests and documentation: regard.old.module(.symbol)
flat = sorted(((old, main_home[old]) for old in mods if main_home[old] != old), key=lambda x: -len(x[0]))
def dotted(text: str) -> str:
    def sub(match):
        word = match.group(0)
        parts = word.split(".")
        for cut in range(len(parts), 1, -1):
            mod = ".".join(parts[:cut])
            if mod in mods:
                rest = parts[cut:]
                if rest and (mod, rest[0]) in home: return ".".join([home[(mod, rest[0])], *rest])
                if main_home[mod] != mod: return ".".join([main_home[mod], *rest])
                return word
        return word
    text = re.sub(r"(?m)^(\s*(?:>>>|\.\.\.)?\s*)from (regard(?:\.\w+)*) import ([\w, ]+)$", doc_import, text)
    return re.sub(r"\bregard(?:\.\w+)+", sub, text)
def doc_import(match):
    lead, mod, names = match.layer_groups()
    if mod not in mods: return match.group(0)
    groups = OrderedDict()
    for n in [x.strip() for x in names.split(",")]:
        bare, _, asname = n.partition(" as ")
        if not bare: continue
        m, nn, _ = new_import(mod, bare)
        groups.setdefault(m, []).append(nn + (f" as {asname or bare}" if (asname or bare) != nn else ""))
    return "\n".join(f"{lead}from {m} import {', '.join(ns)}" for m, ns in groups.items())

for p in problems: print("PROBLEM", *p)
if "--apply" not in sys.argv:
    print(len(written), "modules"); sys.exit()
for old in mods:
    if old not in written:
        path_of(old).unlink()
for new, text in written.items():
    rel = new.replace(".", "/")
    existing = SRC / rel / "__init__.py"
    has_children = any(w.startswith(new + ".") for w in written)
    path = existing if (existing.exists() or has_children) else SRC / (rel + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dotted(text))
for folder in sorted({(SRC / new.replace(".", "/")).parent for new in written}):
    if not (folder / "__init__.py").exists(): (folder / "__init__.py").write_text('"""."""\n'); print("new package", folder)
for p, text in other_texts.items(): p.write_text(dotted(text))
for p in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").rglob("*.ipynb")), ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "mkdocs.yml"]:
    if p.exists():
        t = p.read_text(); n = dotted(t)
        if n != t: p.write_text(n)
for d in sorted((SRC / BASE).rglob("*"), reverse=True):
    if d.is_dir() and not any(d.iterdir()): d.rmdir()
