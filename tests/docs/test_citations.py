"""Citations of the paper name an equation, section, figure or table that it has.

The numbers are counted as LaTeX prints them: each row of an `align` is an equation, subequations
share one number, figures without a caption have none.
"""

import re

from helpers.scripts import ROOT

PLACES = ["mlx_gateloop", "app", "convert", "docs", "benchmarks", "tests"]
SUFFIXES = {".py", ".md", ".yaml", ".h", ".cpp", ".inc", ".js"}
NUMBERS = {
    "equation": {str(n) for n in range(1, 26)},
    "section": {*"123456", "3.1", "3.2", "3.3", "3.4", "5.1", "5.2"},
    "appendix": set("ABC"),
    "figure": {str(n) for n in range(1, 8)},
    "table": {"1", "2"},
}
KINDS = {"eq.": "equation", "equations": "equation", "sections": "section"}
NUMBER = r"\b(?:\d+(?:\.\d)?\b|[A-C]\b)"
CITATION = re.compile(
    rf"\b(eq\.|equations?|sections?|figure|table|appendix) ({NUMBER}(?:(?:,| and| to) {NUMBER})*)",
    re.IGNORECASE,
)


def test_citations_name_what_the_paper_has():
    files = [ROOT / "README.md", *(file for place in PLACES for file in (ROOT / place).rglob("*"))]
    found, wrong = 0, []
    for file in files:
        if file.suffix not in SUFFIXES or "results" in file.parts:
            continue
        before = ""
        for line in file.read_text("utf-8").splitlines():
            if "arXiv" not in before + line:  # else another paper is cited
                for kind, numbers in CITATION.findall(line):
                    known = NUMBERS[KINDS.get(kind.lower(), kind.lower())]
                    found += 1
                    if not known.issuperset(re.findall(NUMBER, numbers)):
                        wrong.append(f"{file.relative_to(ROOT)}: {kind} {numbers}")
            before = line
    assert found > 20
    assert wrong == []
