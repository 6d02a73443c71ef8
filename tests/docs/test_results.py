"""The tables of docs/results.md are those of the records."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.records import run_record
from helpers.scripts import ROOT, load_script

from mlx_gateloop.experiments.presets import PRESETS

PAGE = (ROOT / "docs" / "results.md").read_text("utf-8")
RECORDS = ROOT / "benchmarks" / "results" / "experiments"
TEXTS = [RECORDS / f"text-python-{n}" for n in ("48", "convolution-phases", "convolution")]
LATER = "real s5 softmax s4d lru hgrn2 gla mamba2 convolution"
SMALL = [RECORDS / f"memory-horizon-small-{n}" for n in LATER.split()]
WIKI = "tuned-real mamba2 gla softmax s5 s4d lru hgrn2"
WIKI += " convolution convolution-fixed convolution-real convolution-hgrn2 convolution-gla"
TABLES = {
    "running-sum-sobol": [*RECORDS.glob("running-sum-[!s]*"), "--beyond", 32],
    "memory-horizon-small-sobol": [*SMALL, "--beyond", 32],
    "recall-4000": [*(RECORDS / f"recall-4000-{n}" for n in ("s5", "lru", "hgrn2")), "--beyond", 8],
    "text-shakespeare-tuned": [RECORDS / "text-shakespeare-tuned-real"],
    "text-wikitext-tuned": [RECORDS / f"text-wikitext-{n}" for n in WIKI.split()],
    "text-python-phases": TEXTS,
}


@pytest.fixture
def compare(monkeypatch, capsys):
    """Runs the command; returns its output if it succeeds, else its one line on stderr."""
    comparisons = load_script("benchmarks/comparisons.py")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["comparisons.py", *map(str, words)])
        code = 0
        try:
            comparisons.main()
        except SystemExit as error:
            code = error.code
        shown = capsys.readouterr()
        assert (code, shown.err.count("\n")) in ((0, 0), (2, 1))
        return shown.out + shown.err

    return run


def test_the_page_has_the_tables_of_the_records(compare):
    tables = [compare(RECORDS / name, *options).strip() for name, options in TABLES.items()]
    assert [table for table in tables if f"\n\n{table}\n\n" not in PAGE] == []
    assert not [f for f in RECORDS.rglob("results.md") if " /" in f.read_text().split("##")[0]]


def test_the_card_has_the_table_of_the_report():
    report = (RECORDS.parent / "completions.md").read_text("utf-8").split("\n\n")
    (table,) = [part for part in report if "bits per byte" in part]
    assert table in (ROOT / "app/embedded_models/code/README.md").read_text("utf-8")
    _, _, bits, accepted, *_, answers, _, _ = re.search(r"^\| code .*", table, re.M)[0].split("|")
    for verb, figure in {"needs": bits, "parses": accepted.split()[0], "repeats": answers}.items():
        assert f"{verb} {figure.strip()} " in PAGE


@pytest.fixture
def folders(tmp_path):
    """An experiment, its models without softmax and with it alone, and two other experiments."""
    scores = {"retnet": [[2, 2, 2], [4, 2, 4], [0, 0, 0]], "softmax": [[10, 10, 10]]}
    scores["data_controlled"] = [[6, 6, 6], [10, 8, 8]]
    runs = [
        run_record(
            model,
            seed + 5 * (model == "softmax"),  # no seed of another model
            finished=sum(right) > 0,
            accuracy=(10 + sum(right)) / 40,
            asked_by_span=[10, 10, 10, 10],
            right_by_span=[10, *right],
        )
        for model, rights in scores.items()
        for seed, right in enumerate(rights)
    ]
    sizes = {"retnet": 1024, "data_controlled": 16, "softmax": None}
    experiment = asdict(PRESETS["recall"]["small"])
    experiment["train"]["optimizer.betas"] = [0.9, 0.99]

    def write(name, models, finished=True, tokens=4096, **changes):
        (tmp_path / name).mkdir()
        tree = {
            "environment": {"date": "today"},
            "tokens_per_step": tokens,
            "oracles": {"the commonest answer": 0.25},
            "experiment": experiment | changes,
            "models": {model: {"state_size": sizes[model]} for model in models},
            "runs": [run for run in runs if finished and run["model"] in models],
        }
        (tmp_path / name / "results.json").write_text(json.dumps(tree))

    write("whole", sizes)
    write("first", ["retnet", "data_controlled"])
    write("second", ["softmax"])
    write("other", sizes, draws=3)
    write("large", ["retnet"], tokens=8192)
    write("slow", ["retnet"], train={**experiment["train"], "log_every": 9, "weights": "x"})
    write("unfinished", sizes, finished=False)
    return tmp_path


@pytest.mark.parametrize("parts", ["whole", "first second"])
def test_figures_and_order(compare, folders, monkeypatch, parts):
    monkeypatch.chdir(folders)
    lines = compare(*parts.split(), "--beyond", 1).splitlines()
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert header[3:] == ["beyond 1 inputs", "data-controlled is ahead by (95%)"]
    assert rows == [
        ["softmax without positions", "grows", "1.000", "1.000", ""],
        ["data-controlled", "16", "0.800 ± 0.141", "0.700", ""],
        ["RetNet", "1,024", "0.450 ± 0.071", "0.250", "0.350 (-0.285 to 0.985)"],
    ]
    assert "softmax" not in compare("whole", "--models", "retnet,data_controlled")
    files = compare(*parts.split(), "--pictures", "a/b").split()
    assert {Path(file).name for file in files} == {"accuracy-over-span.png"}
    assert all(Path(file).read_bytes()[:4] == b"\x89PNG" for file in files)


@pytest.mark.parametrize(("options", "words"), [
    ("whole --beyond 2 --reference retnet", "RetNet is ahead by (95%)"),
    ("whole slow --models retnet,data_controlled", "| RetNet, log_every 9, weights True | 1,024 "),
    ("whole --beyond -1", "-1: expected 0 to 2"), ("second --pictures DIR", "over-span.png"),
    ("whole --pictures /dev/null", "--pictures /dev/null: File exists; choose another folder"),
    ("whole --reference s5", 'or several; have "retnet", "softmax", "data_controlled"; see'),
    ("whole --models retnet,s5", "--models: no s5 there; choose retnet, data_controlled"),
    ("second other", "other: differs from second in draws; leave it"), ("unfinished", "error: "),
    ("second large", "large: differs from second in tokens_per_step"),
    ("second whole", "whole: has softmax, as a folder before it; leave one"),
])  # fmt: skip
def test_the_command(compare, folders, monkeypatch, options, words):
    monkeypatch.chdir(folders)
    assert words in compare(*options.split())
