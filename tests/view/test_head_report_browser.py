"""The page of heads in a real browser: a click on a title sorts, nothing is asked for, nothing is complained about."""

from __future__ import annotations

from pathlib import Path

from regard.view.head_report import HeadReport, HeadRow
from tests.view.browser import Seen, needs_browser, started

needs_browser()


def test_titles_sort_the_table(tmp_path: Path) -> None:
    rows = tuple(
        HeadRow(f"encoder.{layer}.self", head, "previous", {"entropy": entropy}, importance)
        for layer, head, entropy, importance in ((10, 0, 2.0, 0.5), (2, 1, 10.0, 0.25), (2, 0, -1.0, None))
    )
    report = HeadReport("<img src=x onerror=alert(1)>", "dev", "loss", False, 1.0, "texts", 3, 3, 3, 1.0, rows)
    place = tmp_path / "heads.html"
    place.write_text(report.page(), "utf-8")

    with started() as browser:
        seen = Seen(browser)
        seen.page.goto(place.as_uri())

        def column(number: int) -> list[str]:
            return [one.strip() for one in seen.page.locator(f"tbody td:nth-child({number})").all_inner_texts()]

        def click(title: str) -> None:
            seen.page.get_by_role("button", name=title, exact=True).click()

        assert column(1) == ["encoder.10.self:0", "encoder.2.self:1", "encoder.2.self:0"]
        click("entropy")
        assert column(4) == ["10.00", "2.00", "-1.00"]
        click("entropy")
        assert column(4) == ["-1.00", "2.00", "10.00"]
        click("importance")
        assert column(3)[-1] == "–"  # what was not measured stays last, in either order
        click("importance")
        assert column(3) == ["+0.2500", "+0.5000", "–"]
        click("head")
        click("head")
        assert column(1) == ["encoder.2.self:0", "encoder.2.self:1", "encoder.10.self:0"]
        assert seen.page.locator("th[aria-sort=ascending]").inner_text() == "head"
        assert seen.page.locator("h1").inner_text() == "Heads of <img src=x onerror=alert(1)>"
        assert not seen.faults and seen.asked == [place.as_uri()]
