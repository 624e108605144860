"""Rename symbols by type: mypy resolves every name, attribute and keyword; edits are applied to the text at once."""
from __future__ import annotations
import ast, json, os, re, sys, time, pickle
from collections import defaultdict
from pathlib import Path

ROOT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".")
sys.setrecursionlimit(20000)
from mypy import build, nodes, types as mt
from mypy.options import Options
from mypy.modulefinder import BuildSource

SKIP = {"regard_engine"}

def module_name(path: Path) -> str:
    rel = path.relative_to(ROOT)
    parts = list(rel.with_suffix("").parts)
    if parts[0] == "src":
        parts = parts[1:]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)

def sources() -> dict[str, Path]:
    found = {}
    for folder in ("src/regard", "tests", "benchmarks", "examples", "recipes", "docs", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found[module_name(path)] = path
    for name in ("conftest.py",):
        if (ROOT / name).exists():
            found["conftest"] = ROOT / name
    return found

FENCE = re.compile(r"^(\s*)```python\s*$")

def doctest_source(text: str, module: str | None) -> str | None:
    """A synthetic module with the doctest code at the same lines and columns, or None."""
    lines = text.split("\n")
    out = [""] * len(lines)
    block = None
    count = 0
    previous = -10
    for index, line in enumerate(lines):
        match = re.match(r"^(\s*)(>>>|\.\.\.)( |$)(.*)$", line)
        if match and (match.group(2) == ">>>" or previous == index - 1):
            indent = len(match.group(1)) + 4
            if match.group(2) == ">>>" and (previous < 0 or block_breaks(lines, previous, index)):
                count += 1
                if out[index - 1]:
                    return None
                out[index - 1] = f"def _doctest_{count}() -> None:"
            out[index] = " " * indent + match.group(4)
            previous = index
    if not count:
        return None
    header = f"from {module} import *" if module else ""
    names = []
    if module:
        tree = ast.parse(text)
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.append(node.name)
            elif isinstance(node, ast.Assign):
                names += [t.id for t in node.targets if isinstance(t, ast.Name)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.append(node.target.id)
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                names += [a.asname or a.name for a in node.names]
        imports = [ast.unparse(n) for n in tree.body if isinstance(n, ast.Import)]
        header = "; ".join([f"from {module} import {', '.join(names)}" if names else "pass", *imports])
    if out[0]:
        return None
    out[0] = header
    return "\n".join(out)

def block_breaks(lines, previous, index) -> bool:
    """Whether a new docstring starts between two prompts."""
    return any('"""' in line or "```" in line for line in lines[previous + 1:index])

def markdown_source(text: str) -> str | None:
    lines = text.split("\n")
    out = [""] * len(lines)
    inside = None
    body: list[int] = []
    any_code = False
    count = 0
    for index, line in enumerate(lines):
        if inside is None:
            match = FENCE.match(line)
            if match:
                inside = match.group(1)
                start = index
                body = []
        elif line.strip() == "```":
            code = [lines[i] for i in body]
            if not any(c.strip().startswith((">>>", "%")) for c in code):
                any_code = True
                out_names = f"def _block_{count}():"
                count += 1
                # keep columns: markdown code starts at column len(inside): top-level statements at module scope
                for i in body:
                    out[i] = lines[i]
            else:
                sub = doctest_source("\n".join([""] * (start + 1) + [lines[i] for i in body]), None)
                if sub:
                    any_code = True
                    for i, l in enumerate(sub.split("\n")):
                        if l.strip():
                            out[i] = l
            inside = None
        else:
            body.append(index)
    return "\n".join(out) if any_code else None

class File:
    def __init__(self, path: Path, text: str, synthetic: bool):
        self.path, self.text, self.synthetic = path, text, synthetic
        self.lines = text.split("\n")
        self.tree = ast.parse(text)

def byte_to_char(line: str, col: int) -> int:
    return len(line.encode()[:col].decode())

def load():
    files: dict[str, File] = {}
    build_sources = []
    for module, path in sources().items():
        text = path.read_text()
        files[module] = File(path, text, False)
        build_sources.append(BuildSource(str(path), module))
        if module.startswith("regard"):
            syn = doctest_source(text, module)
            if syn:
                name = "_doctest." + module
                try:
                    files[name] = File(path, syn, True)
                    build_sources.append(BuildSource(str(path) + "#doctest", name, syn))
                except SyntaxError as e:
                    print("doctest syntax", path, e)
    for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        syn = markdown_source(path.read_text())
        if syn:
            name = "_docs." + re.sub(r"\W", "_", str(path.relative_to(ROOT)))
            try:
                files[name] = File(path, syn, True)
                build_sources.append(BuildSource(str(path) + "#docs", name, syn))
            except SyntaxError as e:
                print("markdown syntax", path, e)
    options = Options()
    options.python_version = (3, 11)
    options.mypy_path = [str(ROOT / "src"), str(ROOT)]
    options.namespace_packages = True
    options.explicit_package_bases = True
    options.ignore_missing_imports = True
    options.check_untyped_defs = True
    options.export_types = True
    options.preserve_asts = True
    options.incremental = False
    options.cache_dir = os.devnull
    options.show_traceback = True
    options.allow_redefinition = False
    options.strict_optional = True
    options.ignore_errors = False
    options.semantic_analysis_only = False
    options.warn_unreachable = True
    third = "torch numpy transformers safetensors tokenizers sacrebleu ctranslate2 huggingface_hub onnx onnxruntime openvino sentence_transformers sentencepiece sklearn cairosvg rich babel fastapi starlette uvicorn pydantic playwright tensorboard nncf joeynmt num2words scipy accelerate eole datasets filelock pytest_playwright nbclient nbformat nbconvert IPython mkdocs httpx"
    options.per_module_options = {}
    for name in third.split():
        options.per_module_options[name] = {"follow_imports": "skip"}
        options.per_module_options[name + ".*"] = {"follow_imports": "skip"}
    for name in ("native_parser",):
        if hasattr(options, name):
            setattr(options, name, False)
    t = time.time()
    result = build.build(build_sources, options)
    print(f"mypy: {time.time()-t:.0f} s, {len(result.errors)} messages, {len(result.types)} types", file=sys.stderr)
    return files, result

# ---------------------------------------------------------------- resolving

SINGLE = {'Watcher', 'Rows'}
class Resolver:
    def __init__(self, result, rules):
        self.types = result.types
        self.trees = result.files
        self.globals = rules["globals"]          # fullname -> new
        self.members = rules["members"]          # (class fullname, attr) -> new
        self.params = rules["params"]            # (function fullname, name) -> new
        self.extend_by_protocols()
        self.member_names = {attr for _, attr in self.members}

    def all_infos(self):
        seen = set()
        def walk(names):
            for sym in list(names.values()):
                n = sym.node
                if isinstance(n, nodes.TypeInfo) and n.fullname not in seen and n.fullname.startswith(("regard", "tests", "benchmarks", "examples", "recipes", "conftest", "docs", "tools")):
                    seen.add(n.fullname); yield n; yield from walk(n.names)
        for name, tree in self.trees.items():
            if name.startswith(("regard", "tests", "benchmarks", "examples", "recipes", "conftest", "docs", "tools")): yield from walk(tree.names)

    def extend_by_protocols(self):
        infos = list(self.all_infos())
        protocols = [i for i in infos if i.is_protocol]
        for _ in range(2):
            for proto in protocols:
                members = set(proto.protocol_members)
                renamed = {a: n for a in members if (n := self.member_of(proto, a))}
                if not renamed or len(members) < 1: continue
                for info in infos:
                    if info is proto or any(b is proto for b in info.mro): continue
                    if all(info.get(m) is not None for m in members):
                        for a, n in renamed.items():
                            if self.member_of(info, a) is None and (len(members) >= 2 or proto.name in SINGLE):
                                owner = next(b for b in info.mro if a in b.names)
                                if owner.fullname.startswith("regard") or owner.fullname.startswith("tests"):
                                    self.members[(owner.fullname, a)] = n
        self.clashes = []
        by = {i.fullname: i for i in infos}
        for (cls, a), n in self.members.items():
            info = by.get(cls)
            if info is None: self.clashes.append(("no class", cls, a, n)); continue
            if info.get(a) is None: self.clashes.append(("no member", cls, a, n))
            if info.get(n) is not None and self.member_of(info, n) is None: self.clashes.append(("member exists", cls, a, n))
        for fullname, n in self.globals.items():
            mod, _, name = fullname.rpartition(".")
            tree = self.trees.get(mod)
            if tree is None or name not in tree.names: self.clashes.append(("no global", fullname, n)); continue
            s = tree.names.get(n)
            if s is not None and s.node is not None and s.node.fullname not in self.globals: self.clashes.append(("global exists", fullname, n, s.node.fullname))

    def member_of(self, info, attr):
        news = {self.members[(b.fullname, attr)] for b in info.mro if (b.fullname, attr) in self.members}
        if len(news) > 1:
            print("CONFLICT in mro", info.fullname, attr, news)
        return next(iter(news), None)

    def infos(self, typ):
        """TypeInfos an expression's type may be; None for Any."""
        typ = mt.get_proper_type(typ)
        if isinstance(typ, mt.Instance):
            return [typ.type]
        if isinstance(typ, mt.TupleType):
            return [typ.partial_fallback.type]
        if isinstance(typ, mt.UnionType):
            out = []
            for item in typ.items:
                sub = self.infos(item)
                if sub is None:
                    continue
                out += sub
            return out
        if isinstance(typ, mt.TypeVarType):
            return self.infos(typ.upper_bound)
        if isinstance(typ, mt.TypeType):
            return self.infos(typ.item)
        if isinstance(typ, mt.CallableType):
            if typ.is_type_obj():
                return [typ.type_object()]
            return [typ.fallback.type]
        if isinstance(typ, mt.Overloaded):
            if typ.is_type_obj():
                return [typ.type_object()]
            return []
        if isinstance(typ, mt.LiteralType):
            return [typ.fallback.type]
        if isinstance(typ, mt.TypedDictType):
            return [typ.fallback.type]
        if isinstance(typ, mt.NoneType):
            return []
        if isinstance(typ, mt.AnyType):
            return None
        return []

SKIP_ATTRS = {"node", "info", "type", "unanalyzed_type", "names", "analyzed", "var", "original_decorators", "definition", "original_def",
              "expanded", "type_annotation", "variable", "unanalyzed_items", "method_types", "left_node", "dataclass_transform_spec", "metadata",
              "special_alias", "type_args", "alias_tvars", "inferred_type", "index_type", "inferred_item_type", "unanalyzed_index_type", "tuple_type", "type_guard", "type_is", "tvars", "type_vars", "mypyc_attrs", "deco_line", "deps", "defs_"}
_fields = {}
def child_fields(cls):
    if cls not in _fields:
        names = set()
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if name.startswith("_") or name in SKIP_ATTRS: continue
                if type(value).__name__ in ("getset_descriptor", "member_descriptor"): names.add(name)
        _fields[cls] = sorted(names)
    return _fields[cls]

SYNTAX = (nodes.Statement, nodes.Expression, nodes.Block, nodes.Argument, nodes.MypyFile)
try:
    from mypy.patterns import Pattern
    SYNTAX = (*SYNTAX, Pattern)
except ImportError: pass

def chain(o):
    parts = []
    while isinstance(o, nodes.MemberExpr):
        parts.append(o.name); o = o.expr
    if isinstance(o, nodes.NameExpr): parts.append(o.name); return ".".join(reversed(parts))
    return None

STOP = set("full gather long at pad size decode run start stop text name embedding accumulate clip fill keep first last end total read rows kind parts words lines line of each row labels put masked attention side best inside top count scores pool sites figure block table add text_ hidden path looked weights shared pieces".split())

class Walker:
    """Collects, by position, what mypy knows of names, attributes and calls."""
    def __init__(self, resolver, out):
        self.r, self.out = resolver, out
        self.class_stack = []
        self.visited = set()
    def key(self, o): return (o.line, o.column, o.end_line, o.end_column)
    def walk(self, o):
        if isinstance(o, (list, tuple)):
            for x in o: self.walk(x)
            return
        if not isinstance(o, SYNTAX) or id(o) in self.visited: return
        self.visited.add(id(o))
        if isinstance(o, nodes.ClassDef):
            self.class_stack.append(o.info)
            self.children(o)
            self.class_stack.pop()
            return
        if isinstance(o, nodes.NameExpr): self.out["names"].setdefault(self.key(o), o)
        elif isinstance(o, nodes.SuperExpr): self.out["supers"][self.key(o)] = (o.info.mro[1:] if o.info else [], o)
        elif isinstance(o, nodes.MemberExpr): self.member(o)
        elif isinstance(o, nodes.CallExpr): self.out["calls"][self.key(o)] = o
        elif isinstance(o, nodes.FuncDef): self.out["funcs"].append((o, self.class_stack[-1] if self.class_stack else None))
        self.children(o)
    def children(self, o):
        for name in child_fields(type(o)):
            try: value = getattr(o, name)
            except Exception: continue
            if isinstance(value, (list, tuple, *SYNTAX)): self.walk(value)
    def member(self, o):
        infos = None
        e = o.expr
        if isinstance(e, nodes.RefExpr) and isinstance(e.node, nodes.MypyFile):
            self.out["members"][self.key(o)] = ("module", e.node, o); return
        if isinstance(e, nodes.RefExpr) and isinstance(e.node, nodes.TypeInfo):
            infos = [e.node]
        elif isinstance(e, nodes.RefExpr) and isinstance(e.node, nodes.TypeAlias) and isinstance(mt.get_proper_type(e.node.target), mt.Instance):
            infos = [mt.get_proper_type(e.node.target).type]
        elif e in self.r.types:
            infos = self.r.infos(self.r.types[e])
        if infos is None and isinstance(e, nodes.NameExpr) and e.name in ("self", "cls") and self.class_stack:
            infos = [self.class_stack[-1]]
        self.out["members"][self.key(o)] = ("infos", infos, o)
        text = chain(o)
        if text: self.out["texts"].setdefault(text, []).append(infos)

def definition_functions(r, call, callee_type):
    """FuncDefs (fullnames) and classes a call may reach."""
    funcs, classes = [], []
    def from_type(t):
        t = mt.get_proper_type(t)
        if isinstance(t, mt.CallableType):
            if t.is_type_obj():
                classes.append(t.type_object())
            elif t.definition is not None:
                funcs.append(t.definition)
        elif isinstance(t, mt.Overloaded):
            for i in t.items: from_type(i)
        elif isinstance(t, mt.UnionType):
            for i in t.items: from_type(i)
        elif isinstance(t, mt.TypeType):
            for info in r.infos(t) or []: classes.append(info)
        elif isinstance(t, mt.Instance):
            m = t.type.get_method("__call__")
            if t.type.fullname.startswith(("regard", "tests", "benchmarks", "examples")):
                if t.type.get_method("forward") is not None: m = t.type.get_method("forward")
            if m is not None: funcs.append(m)
    c = call.callee
    if isinstance(c, nodes.RefExpr) and isinstance(c.node, nodes.TypeInfo):
        classes.append(c.node)
    elif isinstance(c, nodes.RefExpr) and isinstance(c.node, (nodes.FuncDef, nodes.Decorator, nodes.OverloadedFuncDef)):
        funcs.append(c.node)
    elif isinstance(c, nodes.RefExpr) and isinstance(c.node, nodes.TypeAlias):
        t = mt.get_proper_type(c.node.target)
        if isinstance(t, mt.Instance): classes.append(t.type)
    if isinstance(c, nodes.MemberExpr) and not (isinstance(c.expr, nodes.RefExpr) and isinstance(c.expr.node, nodes.MypyFile)):
        infos = None
        if isinstance(c.expr, nodes.RefExpr) and isinstance(c.expr.node, nodes.TypeInfo): infos = [c.expr.node]
        elif c.expr in r.types: infos = r.infos(r.types[c.expr])
        for info in infos or []:
            m = info.get(c.name)
            if m is not None and isinstance(m.node, (nodes.FuncDef, nodes.Decorator, nodes.OverloadedFuncDef)):
                funcs.append(m.node)
    if isinstance(c, nodes.SuperExpr) and c.info:
        for info in c.info.mro[1:]:
            m = info.names.get(c.name)
            if m is not None:
                if isinstance(m.node, (nodes.FuncDef, nodes.Decorator, nodes.OverloadedFuncDef)): funcs.append(m.node)
                if c.name == "__init__" and is_data(info): classes.append(info)
                break
    if not funcs and not classes and callee_type is not None:
        from_type(callee_type)
    return funcs, classes

def is_data(info):
    return "dataclass" in info.metadata or "dataclass_tag" in info.metadata or info.is_named_tuple

def func_keys(node):
    if isinstance(node, nodes.Decorator): node = node.func
    if isinstance(node, nodes.OverloadedFuncDef):
        out = []
        for item in node.items: out += func_keys(item)
        if node.impl: out += func_keys(node.impl)
        return out
    if isinstance(node, nodes.FuncDef):
        keys = [(node.fullname, node)]
        return keys
    return []

EXCLUDE = {'regard.blocks.recurrent.RecurrentDecoder._fed', 'regard.checkpoint.folder.publish_model'}
PATTERNS = []
def pattern_new(fullname, name, node):
    if fullname.startswith("regard.cli"): return None
    for old, new, prefixes in PATTERNS:
        if name == old and any(fullname.startswith(p) for p in prefixes.split()):
            if fullname in EXCLUDE: return None
            if old == "rows":
                arg = next((a for a in node.arguments if a.variable.name == "rows"), None)
                t = mt.get_proper_type(arg.variable.type) if arg is not None and arg.variable.type is not None else None
                if not (isinstance(t, mt.Instance) and t.type.name == "Rows"): return None
            return new
    return None

def param_new(r, node, name):
    """New name of a parameter of a function: by the function, or by the method it overrides."""
    news = set()
    for fullname, f in func_keys(node):
        new = pattern_new(fullname, name, f)
        if new and not any((fullname, a.variable.name) in r.params and a.variable.name == name for a in f.arguments) and new not in {a.variable.name for a in f.arguments}:
            news.add(new)
    for fullname, f in func_keys(node):
        if (fullname, name) in r.params: news.add(r.params[(fullname, name)])
        if f.info:
            for base in f.info.mro[1:]:
                k = (f"{base.fullname}.{f.name}", name)
                if k in r.params: news.add(r.params[k])
    if len(news) > 1: print("CONFLICT param", node.fullname, name, news)
    return next(iter(news), None)

def class_param_new(r, info, name):
    news = set()
    for base in info.mro:
        for ctor in ("__init__", "__new__"):
            sym = base.names.get(ctor)
            if sym is not None and sym.node is not None:
                if is_data(base) and (sym.plugin_generated or base.is_named_tuple):
                    n = r.member_of(info, name)
                    return n
                return param_new(r, sym.node, name)
    return r.member_of(info, name)

def in_names_context(node, parents):
    p = node
    first = parents.get(node)
    while p in parents:
        child, p = p, parents[p]
        if isinstance(p, ast.ClassDef) and child in p.bases: return "base"
        if isinstance(p, ast.Call) and ast.unparse(p.func) in ("cast", "typing.cast") and p.args and child is p.args[0]: return "cast"
        if isinstance(p, ast.keyword) and p.arg == "bound": return "bound"
        if isinstance(p, ast.arg) or (isinstance(p, ast.AnnAssign) and child is p.annotation): return "annotation"
        if isinstance(p, (ast.FunctionDef,)) : return "annotation" if child is p.returns else None
        if isinstance(p, (ast.Assign, ast.AnnAssign)):
            names = {t.id for t in (p.targets if isinstance(p, ast.Assign) else [p.target]) if isinstance(t, ast.Name)}
            if names & {"__all__"}: return "all"
            if names & {"_HOMES"} and isinstance(first, ast.Dict) and node in first.keys: return "homes"
            return None
    return None

def homes_value(node, parents):
    d = parents[node]
    v = d.values[d.keys.index(node)]
    return v.value if isinstance(v, ast.Constant) else None

def collect(files, result, rules):
    r = Resolver(result, rules)
    rules["_clashes"] = r.clashes
    edits = defaultdict(set)       # path -> {(line, col, old, new)}
    report = defaultdict(list)
    for module, file in files.items():
        tree = result.files.get(module)
        if tree is None:
            report["no tree"].append(module); continue
        out = {"names": {}, "members": {}, "supers": {}, "calls": {}, "funcs": [], "texts": {}}
        Walker(r, out).walk(tree)
        E = edits[file.path]
        lines = file.lines
        def add(line, col, old, new, why):
            if old == new: return
            text = lines[line - 1]
            col = byte_to_char(text, col)
            if text[col:col + len(old)] == old and not (text[col+len(old):col+len(old)+1].isidentifier() or text[col+len(old):col+len(old)+1].isdigit()) and not (col and (text[col-1].isalnum() or text[col-1] == "_")):
                E.add((line, col, old, new))
            else:
                report["position"].append((str(file.path), line, col, old, new, why))
        func_vars = {}
        for f, info in out["funcs"]:
            for arg in f.arguments:
                new = param_new(r, f, arg.variable.name)
                if new: func_vars[id(arg.variable)] = new
        def global_new(fullname):
            return r.globals.get(fullname)
        def scope_name_new(name):
            sym = tree.names.get(name)
            if sym is None or sym.node is None: return None
            return r.globals.get(sym.node.fullname), sym.node.fullname
        parents = {}
        for node in ast.walk(file.tree):
            for child in ast.iter_child_nodes(node): parents[child] = node
        def enclosing_class(node):
            while node in parents:
                node = parents[node]
                if isinstance(node, ast.ClassDef): return node
                if isinstance(node, (ast.FunctionDef, ast.Lambda)): return None
            return None
        class_infos = {}
        def info_of_classdef(node):
            chain = [node.name]; p = node
            while p in parents:
                p = parents[p]
                if isinstance(p, ast.ClassDef): chain.append(p.name)
                elif isinstance(p, ast.FunctionDef): return None
            sym = tree.names.get(chain[-1])
            info = sym.node if sym else None
            for name in reversed(chain[:-1]):
                if not isinstance(info, nodes.TypeInfo): return None
                s = info.names.get(name); info = s.node if s else None
            return info if isinstance(info, nodes.TypeInfo) else None
        local_classes = {}
        for f, info in out["funcs"]:
            if info is not None: local_classes[f.line] = info
        name_by_pos = {(k[0], k[1]): v for k, v in out["names"].items()}
        fdef_params = {}
        fl = {}
        for n in ast.walk(file.tree):
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
                fl.setdefault((n.lineno, n.name), n)
                for d in n.decorator_list: fl.setdefault((d.lineno, n.name), n)
        for f, info in out["funcs"]:
            n = fl.get((f.line, f.name))
            if n is None: continue
            ren = {a.variable.name: func_vars[id(a.variable)] for a in f.arguments if id(a.variable) in func_vars}
            if ren: fdef_params[n] = ren
        def param_in_scope(node, name):
            p = node
            while p in parents:
                p = parents[p]
                if isinstance(p, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    if p in fdef_params and name in fdef_params[p]: return fdef_params[p][name]
                    if name in {a.arg for a in [*p.args.args, *p.args.kwonlyargs]}: return None
            return None
        in_fstring = set()
        for n in ast.walk(file.tree):
            if isinstance(n, ast.JoinedStr):
                for x in ast.walk(n): in_fstring.add(x)
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Name):
                m = name_by_pos.get((node.lineno, node.col_offset))
                if m is not None and m.name != node.id: m = None
                cls = enclosing_class(node) if isinstance(node.ctx, ast.Store) else None
                if cls is not None:
                    info = info_of_classdef(cls)
                    if info is not None:
                        new = r.member_of(info, node.id)
                        if new: add(node.lineno, node.col_offset, node.id, new, "class body")
                        continue
                if m is not None and m.name == node.id:
                    if m.node is not None and id(m.node) in func_vars:
                        add(node.lineno, node.col_offset, node.id, func_vars[id(m.node)], "param use"); continue
                    fullname = m.node.fullname if m.node is not None else (m.fullname or "")
                    if m.kind == nodes.LDEF and not isinstance(m.node, (nodes.TypeInfo, nodes.FuncDef, nodes.Decorator, nodes.MypyFile, nodes.TypeAlias)):
                        # a local import of a module-level variable keeps its fullname
                        if "." not in fullname: continue
                    new = r.globals.get(fullname)
                    if new and fullname.rsplit(".", 1)[-1] == node.id:
                        add(node.lineno, node.col_offset, node.id, new, "name")
                    elif m.kind == nodes.MDEF and isinstance(m.node, (nodes.Var, nodes.FuncDef, nodes.Decorator)):
                        cls = enclosing_class(node)
                        info = info_of_classdef(cls) if cls is not None else None
                        if info is not None:
                            new = r.member_of(info, node.id)
                            if new: add(node.lineno, node.col_offset, node.id, new, "class body use")
                else:
                    if node in in_fstring:
                        new = param_in_scope(node, node.id)
                        if new is None:
                            got = scope_name_new(node.id)
                            new = got[0] if got and got[0] and got[1].rsplit(".", 1)[-1] == node.id else None
                        if new:
                            for ln in range(node.lineno, node.end_lineno + 1):
                                for mm in re.finditer(r"(?<=[{( \[,*+-])" + re.escape(node.id) + r"\b(?!['\"])", lines[ln - 1]):
                                    inside = lines[ln - 1][:mm.start()]
                                    if inside.count("{") > inside.count("}"): E.add((ln, mm.start(), node.id, new))
                        continue
                    got = scope_name_new(node.id)
                    if got and got[0] and got[1].rsplit(".", 1)[-1] == node.id:
                        add(node.lineno, node.col_offset, node.id, got[0], "annotation")
            elif isinstance(node, ast.Attribute):
                key = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
                col = node.end_col_offset - len(node.attr.encode())
                if key in out["supers"]:
                    mro, o = out["supers"][key]
                    for info in mro[:1]:
                        new = r.member_of(info, node.attr)
                        if new: add(node.end_lineno, col, node.attr, new, "super")
                    continue
                got = out["members"].get(key)
                if got is None:
                    # annotation such as module.Class, or unreachable
                    base = ast.unparse(node.value)
                    sym = tree.names.get(base.split(".")[0])
                    if sym is not None and isinstance(sym.node, nodes.MypyFile):
                        s = sym.node.names.get(node.attr)
                        if s is not None and s.node is not None and s.node.fullname in r.globals:
                            add(node.end_lineno, col, node.attr, r.globals[s.node.fullname], "module annotation")
                        continue
                    if node.attr in r.member_names:
                        text = ast.unparse(node)
                        news = set()
                        for infos in out["texts"].get(text, []):
                            for info in infos or []:
                                new = r.member_of(info, node.attr)
                                news.add(new or node.attr)
                        if len(news) == 1:
                            new = news.pop()
                            if new != node.attr:
                                spots = []
                                for ln in range(node.lineno, node.end_lineno + 1):
                                    for mm in re.finditer(r"(?<![\w.])" + re.escape(text) + r"\b", lines[ln - 1]): spots.append((ln, mm.end() - len(node.attr)))
                                for ln, c in spots: E.add((ln, c, node.attr, new))
                                if not spots: report["fstring"].append((str(file.path), node.lineno, text, new))
                            continue
                    if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and node.attr in r.member_names:
                        report["unvisited"].append((str(file.path), node.lineno, ast.unparse(node)))
                    elif node.attr in r.member_names:
                        report["unvisited"].append((str(file.path), node.lineno, ast.unparse(node)[-80:]))
                    continue
                kind, what, o = got
                if kind == "module":
                    s = what.names.get(node.attr)
                    if s is not None and s.node is not None:
                        new = r.globals.get(s.node.fullname)
                        if new: add(node.end_lineno, col, node.attr, new, "module attr")
                    continue
                if what is None:
                    news = {n for (c, a), n in r.members.items() if a == node.attr}
                    if False and len(news) == 1 and node.attr not in STOP:
                        add(node.end_lineno, col, node.attr, next(iter(news)), "any")
                        report["any renamed"].append((str(file.path), node.lineno, ast.unparse(node)[-80:]))
                    elif node.attr in r.member_names:
                        report["any"].append((str(file.path), node.lineno, ast.unparse(node)[-80:]))
                    continue
                news = set()
                for info in what:
                    new = r.member_of(info, node.attr)
                    has = info.get(node.attr) is not None
                    if new: news.add(new)
                    elif has: news.add(node.attr)
                if len(news) > 1:
                    report["union"].append((str(file.path), node.lineno, ast.unparse(node)[-80:], sorted(news)))
                elif news:
                    new = news.pop()
                    if new != node.attr: add(node.end_lineno, col, node.attr, new, "attr")
            elif isinstance(node, ast.Call):
                key = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
                o = out["calls"].get(key)
                keywords = [k for k in node.keywords if k.arg]
                fname = ast.unparse(node.func)
                if o is not None and len(node.args) >= 2 and isinstance(node.args[1], ast.Constant) and isinstance(node.args[1].value, str) \
                        and fname.split(".")[-1] in ("getattr", "hasattr", "setattr", "delattr"):
                    target = o.args[0]
                    name = node.args[1].value
                    new = None
                    if isinstance(target, nodes.RefExpr) and isinstance(target.node, nodes.MypyFile):
                        s = target.node.names.get(name)
                        if s is not None and s.node is not None: new = r.globals.get(s.node.fullname)
                    else:
                        infos = [target.node] if isinstance(target, nodes.RefExpr) and isinstance(target.node, nodes.TypeInfo) else r.infos(r.types[target]) if target in r.types else None
                        for info in infos or []:
                            new = r.member_of(info, name) or new
                        if infos is None and name in r.member_names: report["any"].append((str(file.path), node.lineno, ast.unparse(node)[-80:]))
                    if new:
                        E.add((node.args[1].lineno, byte_to_char(lines[node.args[1].lineno-1], node.args[1].col_offset) + 1, name, new))
                if o is not None and isinstance(node.func, ast.Attribute) and node.func.attr in ("override", "from_dict") and isinstance(o.callee, nodes.MemberExpr):
                    e = o.callee.expr
                    infos = [e.node] if isinstance(e, nodes.RefExpr) and isinstance(e.node, nodes.TypeInfo) else r.infos(r.types[e]) if e in r.types else []
                    for info in (infos or [])[:1]:
                        for d in [x for a in node.args for x in ast.walk(a) if isinstance(x, ast.Dict)]:
                            for key in d.keys:
                                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                                    cur, parts_ = info, []
                                    for comp in key.value.split("."):
                                        if cur is None: parts_.append(comp); continue
                                        parts_.append(r.member_of(cur, comp) or comp)
                                        s = cur.get(comp)
                                        tt = mt.get_proper_type(s.type) if s is not None and s.type is not None else None
                                        cur = tt.type if isinstance(tt, mt.Instance) else None
                                    newkey = ".".join(parts_)
                                    if newkey != key.value: E.add((key.lineno, byte_to_char(lines[key.lineno-1], key.col_offset) + 1, key.value, newkey))
                if not keywords: continue
                if o is None:
                    continue
                funcs, classes = definition_functions(r, o, r.types.get(o.callee))
                if fname.split(".")[-1] in ("replace", "partial", "changed_copy") and o.args:
                    t = r.types.get(o.args[0])
                    if fname.split(".")[-1] == "replace":
                        for info in (r.infos(t) or []) if t is not None else []:
                            if is_data(info): classes.append(info)
                    else:
                        a = o.args[0]
                        if isinstance(a, nodes.RefExpr) and isinstance(a.node, nodes.TypeInfo): classes.append(a.node)
                        elif isinstance(a, nodes.RefExpr) and isinstance(a.node, (nodes.FuncDef, nodes.Decorator)): funcs.append(a.node)
                        elif t is not None and isinstance(mt.get_proper_type(t), mt.CallableType) and mt.get_proper_type(t).definition: funcs.append(mt.get_proper_type(t).definition)
                for k in keywords:
                    news = set()
                    for f in funcs:
                        new = param_new(r, f, k.arg)
                        if new: news.add(new)
                    for info in classes:
                        if fname.split(".")[-1] == "replace": new = r.member_of(info, k.arg)
                        else: new = class_param_new(r, info, k.arg)
                        if new: news.add(new)
                    if len(news) > 1: report["keyword"].append((str(file.path), k.lineno, k.arg, sorted(news)))
                    elif news:
                        add(k.lineno, k.col_offset, k.arg, news.pop(), "keyword")
            elif isinstance(node, ast.ImportFrom):
                mod = result.files.get(node.module or "")
                for alias in node.names:
                    s = mod.names.get(alias.name) if mod is not None else None
                    if s is not None and s.node is not None:
                        new = r.globals.get(s.node.fullname)
                        if new and s.node.fullname.rsplit(".",1)[-1] == alias.name: add(alias.lineno, alias.col_offset, alias.name, new, "import")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                cls = enclosing_class(node)
                # position of the name
                line = node.lineno
                text = lines[line - 1]
                mm = re.compile(r"(def|class)\s+" + re.escape(node.name) + r"\b").search(text, byte_to_char(text, node.col_offset))
                col = mm.end() - len(node.name)
                new = None
                if cls is not None:
                    info = info_of_classdef(cls)
                    if info is None and isinstance(node, ast.FunctionDef): info = local_classes.get(node.lineno)
                    if info is not None:
                        new = r.member_of(info, node.name)
                elif isinstance(parents.get(node), ast.Module) or any(isinstance(parents.get(node), c) for c in (ast.If, ast.Try)):
                    s = tree.names.get(node.name)
                    new = r.globals.get(s.node.fullname) if s is not None and s.node is not None else None
                if new: E.add((line, col, node.name, new))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier() and in_names_context(node, parents):
                got = scope_name_new(node.value)
                new = got[0] if got and got[0] else None
                if new is None and in_names_context(node, parents) == "homes":
                    home = homes_value(node, parents)
                    other = result.files.get("regard." + home) or result.files.get("regard.pipeline." + home) if home else None
                    s = other.names.get(node.value) if other is not None else None
                    new = r.globals.get(s.node.fullname) if s is not None and s.node is not None else None
                if new: E.add((node.lineno, byte_to_char(lines[node.lineno-1], node.col_offset) + 1, node.value, new))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"(regard|tests|benchmarks)(\.\w+)+", node.value):
                if node.value in r.globals:
                    new = node.value.rsplit(".", 1)[0] + "." + r.globals[node.value]
                    at = lines[node.lineno-1].find(node.value)
                    if at >= 0: E.add((node.lineno, at, node.value, new))
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                for name in node.names:
                    got = scope_name_new(name)
                    if got and got[0]: report["global"].append((str(file.path), node.lineno, name, got[0]))
        # shadowing: a function that uses a renamed global must not bind the new name itself
        bound_edits = defaultdict(set)
        for (ln, c, old, new) in E: bound_edits[ln].add((c, old, new))
        for fn in ast.walk(file.tree):
            if not isinstance(fn, (ast.FunctionDef, ast.AsyncFunctionDef)): continue
            stores = {x.id for x in ast.walk(fn) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)} | {a.arg for a in ast.walk(fn) if isinstance(a, ast.arg)}
            for x in ast.walk(fn):
                if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load):
                    for c, old, new in bound_edits.get(x.lineno, ()):
                        if old == x.id and new in stores and byte_to_char(lines[x.lineno-1], x.col_offset) == c and x.id not in stores:
                            report["shadow"].append((str(file.path), x.lineno, old, new, fn.name))
        # parameters
        arg_nodes = {(a.lineno, a.col_offset): a for a in ast.walk(file.tree) if isinstance(a, ast.arg)}
        fdefs = {}
        for n in ast.walk(file.tree):
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)): fdefs.setdefault(n.lineno, n)
        for f, info in out["funcs"]:
            n = None
            for cand in (f.line,):
                n = fdefs.get(cand)
            if n is None or n.name != f.name:
                for cand in range(f.line, f.line + 12):
                    if cand in fdefs and fdefs[cand].name == f.name: n = fdefs[cand]; break
            if n is None: continue
            used = {x.id for x in ast.walk(n) if isinstance(x, ast.Name)} | {x.arg for x in ast.walk(n) if isinstance(x, ast.arg)}
            args = [*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs] + [a for a in (n.args.vararg, n.args.kwarg) if a]
            for a in args:
                new = param_new(r, f, a.arg)
                if new:
                    if new in used: report["param clash"].append((str(file.path), n.lineno, f.fullname, a.arg, new))
                    add(a.lineno, a.col_offset, a.arg, new, "param")
    return edits, report

def apply(edits):
    changed = 0
    for path, items in edits.items():
        if not items: continue
        lines = path.read_text().split("\n")
        per = defaultdict(dict)
        for line, col, old, new in items:
            if (col, old) in per[line] and per[line][(col, old)] != new: print("double edit", path, line, old, new, per[line][(col, old)])
            per[line][(col, old)] = new
        for line, found in per.items():
            text = lines[line - 1]
            for (col, old), new in sorted(found.items(), reverse=True):
                if text[col:col+len(old)] != old:
                    if line > 1: print("mismatch", path, line, col, old, new, text)
                    continue
                text = text[:col] + new + text[col+len(old):]
                changed += 1
            lines[line - 1] = text
        path.write_text("\n".join(lines))
    return changed

if __name__ == "__main__":
    rules = pickle.load(open(Path(__file__).with_name("rules.pkl"), "rb"))
    files, result = load()
    edits, report = collect(files, result, rules)
    total = sum(len(v) for v in edits.values())
    print("edits", total, "in", sum(1 for v in edits.values() if v), "files")
    report["clashes"] = rules.get("_clashes", [])
    for kind, rows in report.items():
        print("==", kind, len(rows))
    json.dump({k: v for k, v in report.items()}, open(Path(__file__).with_name("report.json"), "w"), indent=0, default=str)
    if "--errors" in sys.argv:
        open(Path(__file__).with_name("errors.txt"),"w").write("\n".join(result.errors))
    if "--apply" in sys.argv:
        print("applied", apply(edits))
