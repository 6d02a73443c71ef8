"""Citations of the paper name the right equation, section, figure or table.

The numbers are counted as LaTeX prints them: each row of an `align` is an equation, subequations
share one number, figures without a caption have none. Without the paper's text a test can only
compare the words around a citation with what has that number.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ["mlx_gateloop", "app", "convert", "docs", "benchmarks", "tests", "README.md"]
SUFFIXES = {".py", ".md", ".yaml", ".h", ".cpp", ".inc", ".js"}

# Words near a citation of each number; all that are cited, and no others.
ABOUT = {
    ("equation", "7"): "h_n",  # the recurrence
    ("equation", "8"): "y_n",  # and its output
    ("equation", "9"): r"a_\{m|product of",  # unfolded
    ("equation", "10"): "convolution",  # of S4, S4D and LRU
    ("equation", "11"): "RetNet|convolution",
    ("equation", "12"): "prefix sums",
    ("equation", "13"): r"operator|combine|bullet",  # associative
    ("equation", "14"): "product",  # y_n split in two cumulative products
    ("equation", "15"): "product",  # rearranged
    ("equation", "16"): "product",  # pi_n
    ("equation", "17"): "product",  # y_n by pi_n
    ("equation", "18"): r"bar\{Q\}",
    ("equation", "19"): r"bar\{K\}",
    ("equation", "20"): "mask",
    ("equation", "21"): "attention",  # surrogate
    ("equation", "22"): "softmax",  # its mask
    ("equation", "23"): "softmax",
    ("equation", "25"): "sigmoid",  # a_n from x_n; 24 is the projections
    ("section", "3.1"): "generalise|models|transition",  # relation to other models
    ("section", "3.3"): "pi_n|surrogate",
    ("section", "3.4"): "softmax|mixer",
    ("section", "4"): "transition|model|content-aware|activation",  # practical implementation
    ("section", "5.1"): "Memory Horizon",
    ("appendix", "A"): "Memory Horizon|Draw the task",  # its dataset
    ("appendix", "B"): "proof",  # parallel scan
    ("appendix", "C"): "real part|Re\\b",  # model details
    ("figure", "5"): "resets",  # transitions of Memory Horizon
    ("figure", "6"): "data-controlled against fixed|Memory Horizon",  # a table of accuracy
    ("figure", "7"): "span",
    ("table", "1"): "WikiText|perplexity",
    ("table", "2"): "parameters",  # of the Memory Horizon data
}
KINDS = {"eq.": "equation", "equations": "equation", "sections": "section"}
NUMBER = r"\b(?:\d+(?:\.\d)?\b|[A-C]\b)"
CITATION = re.compile(
    rf"\b(eq\.|equations?|sections?|figure|table|appendix) ({NUMBER}(?:(?:,| and| to) {NUMBER})*)",
    re.IGNORECASE,
)


def cited(line: str) -> set[tuple[str, str]]:
    """Kinds and numbers of all citations in a line."""
    found = set()
    for kind, numbers in CITATION.findall(line):
        first, *rest = re.findall(NUMBER, numbers)
        if " to " in numbers:
            rest = [str(number) for number in range(int(first) + 1, int(rest[-1]) + 1)]
        found |= {(KINDS.get(kind.lower(), kind.lower()), number) for number in (first, *rest)}
    return found


def files() -> list[Path]:
    return [
        file
        for place in PLACES
        for file in ([ROOT / place] if place.endswith(".md") else sorted((ROOT / place).rglob("*")))
        if file.suffix in SUFFIXES and file != Path(__file__) and "results" not in file.parts
    ]


def citations() -> list[tuple[str, tuple[str, str], str]]:
    """The place, number and surroundings of every citation of this paper."""
    found = []
    for file in files():
        lines = file.read_text().splitlines()
        for n, line in enumerate(lines):
            if "arXiv" in "".join(lines[max(0, n - 1) : n + 1]):  # of another paper
                continue
            near = "\n".join(lines[max(0, n - 3) : n + 4])
            place = f"{file.relative_to(ROOT)}:{n + 1}"
            found += [(place, number, near) for number in sorted(cited(line))]
    return found


def test_numbers_of_a_line_are_found():
    assert cited("(Paper, eq. 7 and 8; Re: appendix C)") == {
        ("equation", "7"),
        ("equation", "8"),
        ("appendix", "C"),
    }
    assert cited("equations 14 to 16, section 3.4.") == {
        *(("equation", str(number)) for number in (14, 15, 16)),
        ("section", "3.4"),
    }


def test_every_citation_stands_beside_what_has_that_number():
    found = citations()
    assert {number for _, number, _ in found} == ABOUT.keys()
    wrong = [
        f"{place}: {' '.join(number)}"
        for place, number, near in found
        if not re.search(ABOUT.get(number, r"(?!)"), near, re.IGNORECASE)
    ]
    assert wrong == []


def test_our_reading_of_the_papers_125m_is_called_a_conjecture():
    together = [
        (str(file.relative_to(ROOT)), paragraph)
        for file in files()
        for paragraph in file.read_text().split("\n\n")
        if '"125M"' in paragraph and re.search("123.6M|123[,_]627[,_]217", paragraph)
    ]
    assert len(together) >= 4
    assert [file for file, paragraph in together if "conjecture" not in paragraph] == []
