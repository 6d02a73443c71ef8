"""The tables of docs/results.md are those of the records."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.records import run_record
from helpers.scripts import ROOT, load_script

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.presets import PRESETS

RECORDS = ROOT / "benchmarks" / "results" / "experiments"
EIGHT = ["data_controlled", "fixed", "real_gates", "lru", "s4d_lin", "s4d_inv", "s5"]
EIGHT += ["softmax_rotary"]


@pytest.fixture(scope="module")
def comparisons():
    return load_script("benchmarks/comparisons.py")


@pytest.fixture
def compare(comparisons, monkeypatch, capsys):
    """Runs the command; returns its output if it succeeds, else its one line on stderr."""

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


TABLES = {
    "memory-horizon-bar": (32, EIGHT),
    "memory-horizon-small-long": (32, None),
    "recall-long": (8, EIGHT),
    "text-python-long": (None, None),
}


def test_the_page_has_the_tables_of_the_records(comparisons):
    page = (ROOT / "docs" / "results.md").read_text("utf-8")

    def table(name, beyond, models):
        tree = comparisons.read_parts([RECORDS / name])
        tree["runs"] = [run for run in tree["runs"] if models is None or run["model"] in models]
        return comparisons.table(tree, beyond)

    tables = {name: table(name, *options) for name, options in TABLES.items()}
    completions = (RECORDS.parent / "completions.md").read_text("utf-8").split("\n\n")
    (tables["completions"],) = (part for part in completions if "bits per byte" in part)
    assert [name for name, table in tables.items() if f"\n\n{table}\n\n" not in page] == []
    assert tables["completions"] in (
        (ROOT / "app" / "embedded_models" / "code" / "README.md").read_text("utf-8")
    )


@pytest.fixture
def tree():
    def run(model, seed, right, finished=True):
        asked = {"asked_by_span": [10, 10, 10, 10], "right_by_span": [10, *right]}
        accuracy = (10 + sum(right)) / 40
        return run_record(model, seed, finished=finished, accuracy=accuracy, **asked)

    runs = [
        run("retnet", 0, [2, 2, 2]),
        run("retnet", 1, [4, 2, 4]),
        run("retnet", 2, [0, 0, 0], finished=False),
        run("data_controlled", 0, [6, 6, 6]),
        run("data_controlled", 1, [10, 8, 8]),
        run("softmax", 5, [10, 10, 10]),
    ]
    sizes = {"retnet": 1024, "data_controlled": 16, "softmax": None}
    models = {model: {"state_size": size} for model, size in sizes.items()}
    experiment = asdict(PRESETS["recall"]["small"])
    facts = {"environment": {"date": "today"}, "oracles": {"the commonest answer": 0.25}}
    return facts | {"experiment": experiment, "models": models, "runs": runs}


def test_figures_and_order(comparisons, tree):
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in comparisons.table(tree, 1).splitlines()
    )
    assert header[3:] == ["beyond 1 inputs", "data-controlled is ahead by (95%)"]
    assert rows == [
        ["softmax without positions", "grows", "1.000", "1.000", ""],
        ["data-controlled", "16", "0.800 ± 0.141", "0.700", ""],
        ["RetNet", "1,024", "0.450 ± 0.071", "0.250", "0.350 (-0.285 to 0.985)"],
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--beyond", "2", "--reference", "retnet"], "RetNet is ahead by (95%)"),
        (["--beyond", "-1"], "--beyond -1: expected 0 to 2"),
        (["--beyond", "3"], "--beyond 3: expected 0 to 2"),
        (["--pictures", "/dev/null"], "--pictures /dev/null: File exists; choose another folder"),
        (["--reference", "s5"], "--reference s5: no finished run of it"),
        (["--pictures", "DIR", "--reference", "retnet"], "--reference: tables alone have leads"),
        (["--models", ""], "--models: no run of no model is finished"),
        (["--models", "retnet,s5"], "--models: no s5 there; choose retnet, data_controlled"),
        (["--reference", "nosuch"], "of it; choose retnet, data_controlled, softmax; see"),
        (["--nothing"], "error: unrecognized arguments: --nothing; see"),
    ],
)
def test_the_command(compare, tree, tmp_path, options, words):
    (tmp_path / "results.json").write_text(json.dumps(tree))
    assert words in compare(tmp_path, *options)


@pytest.mark.parametrize("parts", [[1, 2], [2]])  # the last one has no model to refer to
def test_pictures_of_the_parts(compare, folders, tmp_path, parts):
    out = tmp_path / "a" / "b"
    files = compare(*(folders[part] for part in parts), "--pictures", out).split()
    assert {Path(file).name for file in files} == {"accuracy-over-span.png", "accuracies.png"}
    assert all(Path(file).read_bytes()[:4] == b"\x89PNG" for file in files)


def test_only_some_models(compare, folders):
    table = compare(folders[0], "--models", "retnet,data_controlled")
    assert "data-controlled" in table
    assert "RetNet" in table
    assert "softmax" not in table


@pytest.mark.parametrize("options", [[], ["--pictures", "DIR"]])
def test_an_experiment_without_a_finished_run(compare, tree, tmp_path, options):
    (tmp_path / "results.json").write_text(json.dumps(tree | {"runs": []}))
    assert "error: " in compare(tmp_path, *options)


def test_a_folder_without_an_experiment(compare, tmp_path):
    assert "no such file; give an experiment" in compare(tmp_path)


@pytest.fixture
def folders(tree, tmp_path):
    """The experiment, and the part of it that has softmax attention."""

    def write(name, **changes):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps(tree | changes))
        return folder

    def part(is_softmax):
        models = {m: size for m, size in tree["models"].items() if (m == "softmax") == is_softmax}
        return {"models": models, "runs": [run for run in tree["runs"] if run["model"] in models]}

    whole, first, second = (
        write("whole"),
        write("first", **part(False)),
        write("second", **part(True)),
    )
    return whole, first, second, write("other", experiment=tree["experiment"] | {"draws": 3})


def test_parts_of_an_experiment(comparisons, folders):
    whole, first, second, _ = folders
    assert comparisons.table(comparisons.read_parts([first, second])) == comparisons.table(
        comparisons.read_parts([whole])
    )


def test_what_is_no_other_part(comparisons, folders):
    whole, _, second, other = folders
    with pytest.raises(InputError, match=r"other: differs from .*second in draws; leave it"):
        comparisons.read_parts([second, other])
    with pytest.raises(InputError, match="whole: has softmax, as a folder before it; leave one"):
        comparisons.read_parts([second, whole])
