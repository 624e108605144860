"""The page: one file with its own script, style and records, a strict policy, and no text that becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.errors import UsageError
from regard.view.page import asset, asset_names, bundle, escape_json, fit_to_budget, module_order, page, served_page
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.scale import HANG_GUARD
from tests.view.samples import sample_record

EXPORTED = re.compile(r"^export (?:async )?(?:const|class|function\*?) (\w+)", re.MULTILINE)
IMPORTED = re.compile(r'^import \{([^}]*)\} from "\./([a-z-]+\.js)";$', re.MULTILINE)

PAYLOADS = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "{{script}} {{data}}",
    "<!--<script>",
    "javascript:alert(1)",
    "\u2028\u2029\u202e&lt;b&gt;",
    "]]>{{title}}",
]


class ParsedPage(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.is_open = False
        self.texts: dict[int, str] = {}  # by index of the element
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.is_open = True

    def handle_endtag(self, tag: str) -> None:
        self.is_open = False

    def handle_data(self, data: str) -> None:
        index = len(self.elements) - 1
        if self.is_open:
            self.texts[index] = self.texts.get(index, "") + data

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    def select(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and text of the elements with a tag."""
        return [
            (attributes, self.texts.get(index, ""))
            for index, (element_tag, attributes) in enumerate(self.elements)
            if element_tag == tag
        ]


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_policy_allows_only_the_script_and_style_of_the_page() -> None:
    parsed = ParsedPage(page([sample_record()], title="dates"))
    metas = [attributes for attributes, _ in parsed.select("meta")]
    (policy,) = [meta["content"] for meta in metas if meta.get("http-equiv") == "Content-Security-Policy"]
    (data_attributes, _), (_, script) = parsed.select("script")
    ((_, style),) = parsed.select("style")
    assert data_attributes["type"] == "application/json"
    assert policy is not None
    assert f"script-src 'sha256-{digest(script)}'" in policy
    assert f"style-src 'sha256-{digest(style)}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)


def test_the_page_fetches_nothing() -> None:
    html = page([sample_record()], title="dates")
    # a namespace is a name and is never fetched
    assert html.count("http") == html.count("http://www.w3.org/2000/svg") + html.count("http-equiv")
    for _, attributes in ParsedPage(html).elements:
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"


def embedded_json(html: str) -> dict[str, Any]:
    """The JSON in the first script of a page."""
    _, text = ParsedPage(html).select("script")[0]
    content: dict[str, Any] = json.loads(text)
    return content


def test_records_are_restored_from_the_page() -> None:
    records = [sample_record(), sample_record("due cani", "zwei Hunde")]
    content = embedded_json(page(records, title="two"))
    assert content["regard"] == 3
    restored = [Record.from_dict(values) for values in content["records"]]
    assert [record.texts for record in restored] == [record.texts for record in records]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_never_becomes_markup(payload: str) -> None:
    plain = page([sample_record()], title="dates")
    attacked = page([sample_record(payload, payload, payload)], title=payload)
    assert ParsedPage(attacked).tags == ParsedPage(plain).tags
    content = embedded_json(attacked)
    assert content["title"] == payload
    assert content["records"][0]["texts"]["source"]["text"] == payload


def test_escaped_json_keeps_its_content_and_has_no_markup() -> None:
    content = {"text": "<&>\u2028né", "number": 1.5}
    escaped = escape_json(content)
    assert json.loads(escaped) == content
    assert not set("<>&\u2028") & set(escaped)


def test_a_page_without_records_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one record"):
        page([], title="none")


def imports(module: str) -> dict[str, list[str]]:
    """Names that a module imports, by the module that exports them."""
    statements = IMPORTED.findall(asset(module))
    return {exporter: [name.strip() for name in names.split(",") if name.strip()] for names, exporter in statements}


def test_the_bundle_is_small_and_holds_every_module_after_its_imports() -> None:
    assert len(bundle().encode()) <= 200_000
    order = list(module_order())
    assert order[-1] == "page.js"
    assert set(order) == {name for name in asset_names() if name.endswith(".js")}
    for index, module in enumerate(order):
        assert set(imports(module)) <= set(order[:index]), f"{module} is part of a cycle of imports"


def test_every_imported_name_is_exported() -> None:
    exports = {module: EXPORTED.findall(asset(module)) for module in module_order()}
    for module in module_order():
        script = asset(module)
        assert script.count("\nimport ") == len(imports(module)), module
        assert len(re.findall(r"^export ", script, re.MULTILINE)) == len(exports[module]), module
        for exporter, names in imports(module).items():
            assert set(names) <= set(exports[exporter]), (module, exporter)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the script")
def test_modules_of_a_bundle_have_a_scope_of_their_own(tmp_path: Path) -> None:
    """Two modules may define the same name; exports reach the modules that import them."""
    list_exports = "Object.keys(modules).map((name) => [name, Object.keys(modules[name])])"
    prelude, *modules = bundle().split("\nmodules[")
    without_document = [module for module in modules if module.startswith(('"arrays.js"', '"codec.js"'))]
    definitions = "".join(f"\nmodules[{module}" for module in without_document)
    script = tmp_path / "part.mjs"
    script.write_text(f"{prelude}{definitions}\nconsole.log(JSON.stringify({list_exports}));", encoding="utf-8")
    process = subprocess.run(["node", str(script)], check=True, capture_output=True, text=True, timeout=HANG_GUARD)
    exports = dict(json.loads(process.stdout))
    assert exports == {name: EXPORTED.findall(asset(name)) for name in ("arrays.js", "codec.js")}
    assert bundle().count("\nconst drawn = {") > 1


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to check the script")
def test_the_bundle_is_a_valid_script(tmp_path: Path) -> None:
    script = tmp_path / "page.mjs"
    script.write_text(bundle(), encoding="utf-8")
    subprocess.run(["node", "--check", str(script)], check=True, capture_output=True, timeout=HANG_GUARD)


def test_a_large_record_keeps_one_layer_in_full_and_names_what_it_omits() -> None:
    num_tokens = 128
    text = RecordText(" ".join(["a"] * num_tokens), tuple(["a"] * num_tokens), tuple(range(num_tokens)))
    weights = np.full((8, 32, num_tokens, num_tokens), 1 / num_tokens, np.float16)
    attention = AttentionRecord("encoder.self", "source", "source", weights, tuple(range(8)))
    fitted = fit_to_budget(Record("", {"source": text}, (attention,)))
    encodings = [block["codec"] for block in fitted["attention"][0]["blocks"]]
    assert encodings == ["sparse"] * 7 + ["root8"]
    assert "small weights" in fitted["omissions"][0]["dropped"]


def test_a_served_page_has_no_inline_script() -> None:
    parsed = ParsedPage(served_page("abc", title="<b>"))
    (_, content), (script_attributes, script) = parsed.select("script")
    assert script_attributes["src"] == "/app/page.js"
    assert not script
    assert json.loads(content)["record"] == "abc"
    assert not parsed.select("style")
