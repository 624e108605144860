from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

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


class Elements(HTMLParser):
    """Lists the elements of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open = False
        self.text: dict[int, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = True

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        place = len(self.elements) - 1
        if self.open:
            self.text[place] = self.text.get(place, "") + data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, self.text.get(place, ""))
            for place, (name, attributes) in enumerate(self.elements)
            if name == tag
        ]


def parsed(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    return found


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_page_is_whole_and_its_policy_allows_only_its_own_script_and_style() -> None:
    found = parsed(page([sample_record()], title="dates"))
    (policy,) = [one["content"] for one, _ in found.of("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    data, script = found.of("script")
    assert data[0]["type"] == "application/json"
    assert policy is not None
    assert f"script-src 'sha256-{digest(script[1])}'" in policy
    assert f"style-src 'sha256-{digest(found.of('style')[0][1])}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"^(import|export) ", script[1], re.MULTILINE)


def test_nothing_is_fetched_from_anywhere() -> None:
    text = page([sample_record()], title="dates")
    assert text.count("http") == text.count("http://www.w3.org/2000/svg") + text.count("http-equiv")  # a name, no place
    for _, attributes in parsed(text).elements:
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"


def test_records_are_read_back_from_the_page() -> None:
    records = [sample_record(), sample_record("due cani", "zwei Hunde")]
    data = json.loads(parsed(page(records, title="two")).of("script")[0][1])
    assert data["regard"] == 1
    again = [Record.from_dict(one) for one in data["records"]]
    assert [one.texts for one in again] == [one.texts for one in records]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_never_becomes_markup(payload: str) -> None:
    plain = page([sample_record()], title="dates")
    attacked = page([sample_record(payload, payload, payload)], title=payload)
    assert [tag for tag, _ in parsed(attacked).elements] == [tag for tag, _ in parsed(plain).elements]
    data = json.loads(parsed(attacked).of("script")[0][1])
    assert data["title"] == payload
    assert data["records"][0]["texts"]["source"]["text"] == payload


def test_escaped_json_means_the_same() -> None:
    value = {"text": "<&>\u2028né", "number": 1.5}
    assert json.loads(escape_json(value)) == value
    assert not set("<>&\u2028") & set(escape_json(value))


def test_a_page_without_records_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one record"):
        page([], title="none")


def imports(module: str) -> dict[str, list[str]]:
    """Names that a module imports, by the module that exports them."""
    found = IMPORTED.findall(asset(module))
    return {exporter: [name.strip() for name in names.split(",") if name.strip()] for names, exporter in found}


def test_the_bundle_is_small_and_holds_every_module_after_those_it_imports() -> None:
    assert len(bundle().encode()) <= 200_000
    order = list(module_order())
    assert order[-1] == "page.js" and set(order) == {name for name in asset_names() if name.endswith(".js")}
    for place, module in enumerate(order):
        assert set(imports(module)) <= set(order[:place]), f"{module} is part of a cycle of imports"


def test_what_modules_import_is_there() -> None:
    exported = {module: EXPORTED.findall(asset(module)) for module in module_order()}
    for module in module_order():
        text = asset(module)
        assert text.count("\nimport ") == len(imports(module)), module
        assert len(re.findall(r"^export ", text, re.MULTILINE)) == len(exported[module]), module
        for exporter, names in imports(module).items():
            assert set(names) <= set(exported[exporter]), (module, exporter)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the script")
def test_modules_of_a_bundle_keep_their_own_names(tmp_path: Path) -> None:
    """Two modules may define the same name; what one exports arrives in the other."""
    exports = "Object.keys(modules).map((name) => [name, Object.keys(modules[name])])"
    parts = bundle().split("\nmodules[")
    pure = "".join(f"\nmodules[{part}" for part in parts[1:] if part.startswith(('"arrays.js"', '"codec.js"')))
    (tmp_path / "part.mjs").write_text(f"{parts[0]}{pure}\nconsole.log(JSON.stringify({exports}));", encoding="utf-8")
    told = subprocess.run(
        ["node", str(tmp_path / "part.mjs")], check=True, capture_output=True, text=True, timeout=HANG_GUARD
    )
    assert dict(json.loads(told.stdout)) == {name: EXPORTED.findall(asset(name)) for name in ("arrays.js", "codec.js")}
    assert bundle().count("\nconst drawn = {") > 1


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to read the script")
def test_the_script_is_sound_as_it_is_given_to_browsers(tmp_path: Path) -> None:
    (tmp_path / "page.mjs").write_text(bundle(), encoding="utf-8")
    subprocess.run(["node", "--check", str(tmp_path / "page.mjs")], check=True, capture_output=True, timeout=HANG_GUARD)


def test_a_page_of_many_weights_keeps_one_layer_whole_and_says_so() -> None:
    count = 128
    side = RecordText(" ".join(["a"] * count), tuple(["a"] * count), tuple(range(count)))
    seen = AttentionRecord(
        "encoder.self", "source", "source", np.full((8, 32, count, count), 1 / count, np.float16), tuple(range(8))
    )
    made = fit_to_budget(Record("", {"source": side}, (seen,)))
    codes = [block["code"] for block in made["attention"][0]["blocks"]]
    assert codes == ["sparse"] * 7 + ["root8"] and "small weights" in made["cut"][0]["dropped"]


def test_a_served_page_has_no_inline_script() -> None:
    found = parsed(served_page("abc", title="<b>"))
    data, script_ = found.of("script")
    assert script_[0]["src"] == "/app/page.js" and not script_[1]
    assert json.loads(data[1])["record"] == "abc" and not found.of("style")
