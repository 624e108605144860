"""What became of the weights of a folder from elsewhere, told in words."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class WeightReport:
    """What was found in a folder's weights: names taken as they are, renamed, missing and ignored."""

    found: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # name in the file → name it stands for
    missing: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)  # an ignored name → the reason
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Say it in words.

        >>> WeightReport(found=["a"], missing=["b"], ignored=["c"], why={"c": "a buffer"}).lines()
        ['weights: 1 found, 0 renamed, 1 missing, 1 ignored', 'missing, made anew: b', 'ignored: c (a buffer)']
        """
        counts = (len(self.found), len(self.renamed), len(self.missing), len(self.ignored))
        lines = ["weights: {} found, {} renamed, {} missing, {} ignored".format(*counts)]
        if self.renamed:
            old, new = next(iter(self.renamed.items()))
            lines.append(f"renamed: {old} is {new}" + (", and so on" if len(self.renamed) > 1 else ""))
        if self.missing:
            lines.append(f"missing, made anew: {', '.join(self.missing)}")
        reasons: dict[str, list[str]] = {}
        for name in self.ignored:
            reasons.setdefault(self.why.get(name, "not used"), []).append(name)
        lines += [f"ignored: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
        return lines + self.notes
