import sys, json, inspect, pkgutil, importlib
sys.path.insert(0, sys.argv[1] + "/src")
import regard.config as c
from importlib import import_module
out = {}
for m in pkgutil.iter_modules(c.__path__):
    mod = import_module(f"regard.config.{m.name}")
    for name, cls in vars(mod).items():
        if inspect.isclass(cls) and hasattr(cls, "knobs") and name != "Config" and cls.__module__ == mod.__name__:
            try: out[f"{m.name}.{name}"] = [k.path for k in cls.knobs()]
            except Exception as e: out[f"{m.name}.{name}"] = str(e)
json.dump(out, sys.stdout)
