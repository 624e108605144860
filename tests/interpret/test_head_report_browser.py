"""The report on heads in a browser: column headings sort the table; no errors, no requests."""

from __future__ import annotations

from pathlib import Path

from regard.interpret.head_report import HeadReport, HeadRow
from tests.view.browser import Seen, needs_browser, started

needs_browser()


def test_column_headings_sort_the_table(tmp_path: Path) -> None:
    rows = (
        HeadRow("encoder.10.self", 0, "previous", {"entropy": 2.0}, 0.5),
        HeadRow("encoder.2.self", 1, "previous", {"entropy": 10.0}, 0.25),
        HeadRow("encoder.2.self", 0, "previous", {"entropy": -1.0}, None),
    )
    report = HeadReport(
        "<img src=x onerror=alert(1)>",
        "dev",
        metric="loss",
        higher=False,
        whole=1.0,
        unit="texts",
        available=3,
        num_examples=3,
        sample=3,
        seconds=1.0,
        rows=rows,
    )
    path = tmp_path / "heads.html"
    path.write_text(report.page(), "utf-8")

    with started() as browser:
        tab = Seen(browser)
        tab.page.goto(path.as_uri())

        def column(index: int) -> list[str]:
            return [cell.strip() for cell in tab.page.locator(f"tbody td:nth-child({index})").all_inner_texts()]

        def click(heading: str) -> None:
            tab.page.get_by_role("button", name=heading, exact=True).click()

        assert column(1) == ["encoder.10.self:0", "encoder.2.self:1", "encoder.2.self:0"]
        click("entropy")
        assert column(4) == ["10.00", "2.00", "-1.00"]
        click("entropy")
        assert column(4) == ["-1.00", "2.00", "10.00"]
        click("importance")
        assert column(3)[-1] == "–"  # a missing measurement stays last in either order
        click("importance")
        assert column(3) == ["+0.2500", "+0.5000", "–"]
        click("head")
        click("head")
        assert column(1) == ["encoder.2.self:0", "encoder.2.self:1", "encoder.10.self:0"]
        assert tab.page.locator("th[aria-sort=ascending]").inner_text() == "head"
        assert tab.page.locator("h1").inner_text() == "Heads of <img src=x onerror=alert(1)>"
        assert not tab.faults
        assert tab.asked == [path.as_uri()]
