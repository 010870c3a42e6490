"""What `trecho doctor` finds, and its page for a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trecho.errors import ExitCode

EVERY_PROJECT = "every project"
# Examples that a finding names.
EXAMPLES = 5


@dataclass(frozen=True)
class Finding:
    """What is wrong. severity: damage, stale, failed, leftover, skipped; findings: how many, None when not checked."""

    check: str
    severity: str
    object: str
    findings: int | None
    example: str
    repair: str


@dataclass
class Report:
    """What a run found and did."""

    project: str
    findings: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    repaired: dict[str, int] = field(default_factory=dict)
    usable: bool = True
    # Chunks whose vector is not that of their text, by index version.
    wrong_vectors: dict[int, list[int]] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """The worst of what is left: damage, nothing to search, texts given up, behind."""
        left = {finding.severity for finding in self.findings}
        if "damage" in left:
            return ExitCode.ERROR
        if not self.usable:
            return ExitCode.NOT_USABLE
        if "failed" in left:
            return ExitCode.SOME_FAILED
        return ExitCode.NOT_CURRENT if "stale" in left else ExitCode.DONE


_WORDS = {
    "damage": "damaged",
    "stale": "behind",
    "failed": "failed",
    "leftover": "leftover",
    "skipped": "skipped",
}


def page(report: Report, repair: bool) -> Iterator[str]:
    """The report for a person: what is wrong, what was mended, and in one line how it stands."""
    for check, number in report.repaired.items():
        yield f"repaired  {check}: {number}"
    for finding in report.findings:
        count = "" if finding.findings is None else f": {finding.findings}"
        yield f"{_WORDS[finding.severity]:<9} {finding.check}{count} ({finding.object})"
        if finding.example:
            more = " ..." if finding.findings is not None and finding.findings > EXAMPLES else ""
            yield f"          {finding.example}{more}"
        if finding.repair and finding.severity != "skipped":
            yield f"          repair: {finding.repair}"
    skipped = [finding.check for finding in report.findings if finding.severity == "skipped"]
    wrong = len(report.findings) - len(skipped)
    yield (
        f"{report.project}: {wrong or 'no'} finding{'' if wrong == 1 else 's'}; {len(report.passed)} checks passed"
        + (f", not checked: {', '.join(dict.fromkeys(skipped))}" if skipped else "")
    )
    if wrong and not repair:
        yield "trecho doctor --repair mends what can be mended"
