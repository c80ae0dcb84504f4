"""A pattern that reaches the results of longmlm leaves them out, so that a second run has the same corpus."""

import json
import shutil
from pathlib import Path

import pytest

from longmlm import needs
from longmlm.artifacts import artifact
from longmlm.artifacts.run import RunSummary, TrainState
from longmlm.data.engine import prepare_rows
from longmlm.data.files import files_of, left_out
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source
from longmlm.settings.shipped import PACKAGE
from longmlm.temporary import LOCK, MARK
from longmlm.training.run_folder import HEADER

MINI = str(PACKAGE / "bundled" / "roberta-mini")
SUMMARY = RunSummary(state=TrainState(), train_tokens_per_second=None, num_processes=1, peak_memory_bytes=1)


OWN = {  # what shows that longmlm wrote a folder, and another file in it
    "longmlm.json": ('{"base": "of an early version"}', "vocab.txt"),
    RunSummary.FILE: (json.dumps(artifact.dump(SUMMARY)), "wandb/run-1/output.jsonl"),
    "settings.toml": (HEADER, "metrics.jsonl"),  # of a run in training
    "trial.toml": ("", "log.txt"),
    LOCK: ("", "set_aside/records.jsonl"),
    MARK: ("", "content/set_aside/slice-0.jsonl"),
}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two files of text in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("deep/er").mkdir(parents=True)
    paths = [Path("a.jsonl"), Path("deep/er/b.txt")]
    for path in paths:
        lines = [f"{path.stem} {number}." for number in range(20)]
        path.write_text("\n".join(json.dumps({"text": line}) if path.suffix == ".jsonl" else line for line in lines))
    return paths


@pytest.mark.parametrize("sign", OWN)
@pytest.mark.parametrize("root", ["out", "deep/er/out"])
def test_what_longmlm_wrote_is_no_corpus(corpus: list[Path], sign: str, root: str) -> None:
    folder, (content, name) = Path(root), OWN[sign]
    folder.mkdir()
    (folder / sign).write_text(content)
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"text": "Not of the corpus."}\n')
    patterns = ["**/*.jsonl", "**/*.txt"]
    assert files_of(patterns) == corpus
    assert [path.relative_to(Path.cwd()) for path in files_of([f"{Path.cwd()}/{x}" for x in patterns])] == corpus
    assert str(file) in left_out(patterns) and "1 file" in left_out(patterns)
    assert files_of([str(file)]) == [file], "a file that is named is meant"
    with pytest.raises(DataError, match=f"it matches only files that longmlm wrote, such as {file}"):
        files_of([f"{root}*/**/*{file.suffix}"])


def test_files_of_the_user_with_such_names_are_read(corpus: list[Path]) -> None:
    Path("deep/manifest.json").write_text('{"files": {}}')
    Path("deep/settings.toml").write_text("[mine]\n")
    Path("deep/er/set_aside").mkdir()
    own = shutil.copy("a.jsonl", "deep/er/set_aside/metrics.jsonl")
    assert files_of(["**/*.jsonl"]) == [Path("a.jsonl"), Path(own)]
    assert left_out(["**/*.jsonl"]) == ""


def test_rows_stay_the_same_when_a_pattern_matches_the_output(corpus: list[Path]) -> None:
    sources = (Source(files=("**/*.jsonl",)),)
    recipe = PrepareRecipe(tokenizer=MINI, row_length=16, sources=sources, held_out_fraction=0.4)
    first = prepare_rows(recipe, load_vocabulary(MINI), Path("out/rows"))
    assert [file.path for file in first.plan.sources[0].files] == ["a.jsonl"]
    (Path("out/rows") / "set_aside").mkdir(exist_ok=True)
    (Path("out/rows") / "set_aside" / "train.jsonl").write_text("{}\n")
    Path("out/run").mkdir()
    Path("out/run/metrics.jsonl").write_text("{}\n")
    artifact.write(Path("out/run") / RunSummary.FILE, SUMMARY)
    assert prepare_rows(recipe, load_vocabulary(MINI), Path("out/rows")) == first


def test_an_output_inside_the_folder_of_a_dataset_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    sources = (Source(dataset="texts", split="train"),)
    recipe = PrepareRecipe(tokenizer=MINI, row_length=16, sources=sources)
    with pytest.raises(DataError, match="texts/out/rows is inside the dataset texts"):
        needs.check_inputs(PrepareConfig(output="texts/out/rows", recipe=recipe))
