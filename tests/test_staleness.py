"""Results are known as current by content: the same thing under another name is the same, another thing is not.

Text that is not there counts as unchanged, and unchanged text is known by the size and time of its files.
"""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import folders, staleness
from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.artifacts.run import RunSummary
from longmlm.cli import main
from longmlm.data import rows_plan, words
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.rows_plan import plan_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, FolderError, ModelError
from longmlm.folders import MANIFEST
from longmlm.needs import check_inputs
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.training import run_folder
from longmlm.training.run_folder import best_checkpoint, checkpoint_folder
from tests.support.current import pipeline, project, stale
from tests.support.results import write_result, write_results, write_run
from tests.support.tiny import NUM_POSITIONS

__all__ = ["pipeline", "project"]
Configured = Callable[..., ResolvedPipeline]
OTHER_TEXT = "out/rows was made from other text than the corpus holds now: name another output, move out/rows away"


def moved(name: str, target: str) -> str:
    Path(target).parent.mkdir(exist_ok=True)
    shutil.move(name, target)
    return target


def linked(name: str) -> str:
    link = Path(f"named-{name}")
    link.symlink_to(name)
    return str(link)


def prepared(config: ResolvedPipeline) -> ResolvedPipeline:
    """Prepares the rows of a pipeline anew, and returns it."""
    shutil.rmtree("out/rows", ignore_errors=True)
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    return config


def refusal(config: ResolvedPipeline, name: str = "prepare") -> str:
    """Returns the line in which a stage refuses to go on from its result; empty if it does not."""
    error = None
    try:
        staleness.check_result(config, name)
    except (FolderError, DataError) as raised:
        error = raised
    line = str(error or "")
    assert "\n" not in line and "remove" not in line
    assert isinstance(error, FolderError) == ("other settings" in line)
    return line


NAMES: dict[str, Callable[[str], str]] = {
    "dotted": lambda name: f"./{name}",
    "absolute": os.path.abspath,
    "through a link": linked,
    "moved to another name": lambda name: moved(name, f"elsewhere/named-{name}"),
}


@pytest.mark.parametrize("way", NAMES)
def test_model_corpus_and_output_are_the_same_under_another_name(pipeline: Configured, way: str) -> None:
    write_result(pipeline(), "release")
    config = pipeline(model=NAMES[way]("base"), corpus=[NAMES[way]("text.jsonl")], output=NAMES[way]("out"))
    assert stale(config) == []
    rows = Path(config.output, "rows")
    before = (rows / MANIFEST).read_bytes()
    prepare_rows(config.prepare.recipe, load_vocabulary(config.model), rows)
    assert (rows / MANIFEST).read_bytes() == before


def test_another_model_another_text_and_other_settings_are_not_the_same(pipeline: Configured) -> None:
    shutil.copytree("base", "other")
    tokenizer = Path("other/tokenizer.json")
    written = tokenizer.read_text(encoding="utf-8")
    tokenizer.write_text(written + "\n", encoding="utf-8")
    other = refusal(pipeline(model="other"), "extend")
    assert other.startswith("extend: out/long was made with other settings: base was base, is other; set them back")
    shutil.rmtree("base")
    moved("other", "base")
    Path("base/model.safetensors").touch()
    made_from = "was made from other weights than base holds now: name another output, move"
    assert f"out/long {made_from} out/long away to make it again" in refusal(pipeline(), "extend")
    shutil.rmtree("out/long")
    assert f"out/run {made_from}" in refusal(pipeline(), "pretrain")
    assert "out/rows was made from another tokenizer than base holds now: name another" in refusal(pipeline())
    Path("base/tokenizer.json").write_text(written, encoding="utf-8")
    with Path("text.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"text": "One more."}')
    assert OTHER_TEXT in refusal(pipeline())
    assert "recipe.sources.0.language was en, is de;" in refusal(pipeline(language="de"))
    assert "recipe.seed was 42, is 7;" in refusal(pipeline(pretrain={"recipe": {"seed": 7}}), "pretrain")


def shortened(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "weights": shortened,
    "missing weights": lambda checkpoint: (checkpoint / "model.safetensors").unlink(),
    "manifest": lambda checkpoint: (checkpoint / MANIFEST).write_text("{", encoding="utf-8"),
    "missing manifest": lambda checkpoint: (checkpoint / MANIFEST).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_results_of_the_best_intact_checkpoint_are_current_beside_a_damaged_better_one(
    pipeline: Configured, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "REQUIRED_FILES", ())  # the checkpoints hold no optimizer
    config = pipeline()
    write_result(config, "release")
    [measured] = run_folder.list_checkpoints(Path("out/run"))
    summary = Path("out/run", RunSummary.FILE).read_bytes()
    write_run(config, step=3)  # of two equal accuracies, the earlier counts as better
    Path("out/run", RunSummary.FILE).write_bytes(summary)
    better = checkpoint_folder(Path("out/run"), 3)
    assert best_checkpoint(Path("out/run")) == better < measured
    assert stale(config) == ["evaluate", "release"]
    DAMAGES[damage](better)
    assert stale(config) == []


def test_a_run_that_started_from_a_moved_model_of_its_own_length_is_the_same(pipeline: Configured) -> None:
    own = {"extension": False, "length": NUM_POSITIONS, "output": "own"}
    write_results(replace(pipeline(**own), until="pretrain"))
    own["model"] = moved("base", "models/base")
    assert stale(pipeline(**own)) == ["evaluate", "release"]
    Path("models/base/model.safetensors").write_bytes(b"other")
    made = "own/run was made with other settings: start.checkpoint was base, is models/base"
    assert made in refusal(pipeline(**own), "pretrain")


def test_unfinished_rows_of_a_moved_corpus_are_kept(pipeline: Configured) -> None:
    recipe, asked = replace(pipeline().prepare.recipe, slice_bytes=300), list[list[int]]()

    def pack_one(job, numbers):
        asked.append(numbers)
        run_slices(job, numbers[:1])
        raise KeyboardInterrupt

    def pack_all(job, numbers):
        asked.append(numbers)
        run_slices(job, numbers)

    with pytest.raises(KeyboardInterrupt):
        prepare_rows(recipe, load_vocabulary("base"), Path("new"), pack_one)
    source = replace(recipe.sources[0], files=(moved("text.jsonl", "named.jsonl"),))
    prepare_rows(replace(recipe, sources=(source,)), load_vocabulary("base"), Path("new"), pack_all)
    assert asked[1] == asked[0][1:] != []


def test_the_same_bytes_in_another_format_are_other_text(pipeline: Configured) -> None:
    recipe = pipeline().prepare.recipe
    as_text = replace(recipe.sources[0], files=(shutil.copy("text.jsonl", "text.txt"),))
    one, two = (plan_rows(each, "f").plan for each in (recipe, replace(recipe, sources=(as_text,))))
    assert not one.is_same(two)
    assert one.is_same(one) and not one.is_same(replace(one, tokenizer_fingerprint="g"))


def test_a_corpus_is_read_again_only_if_its_size_or_time_differs(
    pipeline: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, hashed = Path("text.jsonl"), list[Path]()

    def hashed_now() -> list[Path]:
        hashed.clear()
        rows_plan._sha256_of.cache_clear()
        assert stale(pipeline()) == ["release"]
        return hashed

    monkeypatch.setattr(rows_plan, "sha256_of", lambda path: hashed.append(path) or folders.sha256_of(path))
    [recorded] = read_rows_manifest(Path("out/rows")).plan.files
    os.utime(text, ns=(0, recorded.mtime_ns))
    assert hashed_now() == []
    os.utime(text, ns=(0, recorded.mtime_ns + 1))
    assert hashed_now() == [text]

    written = text.read_text(encoding="utf-8")
    text.write_text(written.replace("number 7", "number 8"), encoding="utf-8")
    assert OTHER_TEXT in refusal(pipeline())
    text.write_text(written, encoding="utf-8")
    assert hashed_now() == [text]


def test_complete_rows_are_done_without_their_text(pipeline: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert staleness.absent_text(pipeline().prepare) == ""
    Path("text.jsonl").unlink()
    assert stale(pipeline()) == ["release"]
    assert staleness.absent_text(pipeline().prepare).startswith("note: text.jsonl: not there")
    assert "recipe.sources.0.language was en, is de" in refusal(pipeline(language="de"))
    staleness.check_text(pipeline().prepare)
    monkeypatch.setattr(sys, "argv", ["longmlm", "prepare", "out/rows.toml"])
    Path("out/rows.toml").write_text(to_toml(pipeline().prepare), encoding="utf-8")
    main()
    shutil.rmtree("out/rows")
    with pytest.raises(DataError, match=r"^text\.jsonl: no such file"):
        check_inputs(pipeline())


@pytest.mark.parametrize("patterns", [["a.jsonl", "b.jsonl"], ["[a].jsonl", "b*.jsonl"]])
def test_the_part_of_a_corpus_that_is_there_is_compared(pipeline: Configured, patterns: list[str]) -> None:
    lines = Path("text.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, part in (("a.jsonl", lines[:15]), ("b.jsonl", lines[15:])):
        Path(name).write_text("".join(part), encoding="utf-8")
    config = prepared(pipeline(corpus=patterns))
    Path("b.jsonl").unlink()
    assert refusal(config) == ""
    assert staleness.absent_text(config.prepare).startswith(f"note: {patterns[1]}: not there")
    Path("a.jsonl").write_text("".join(lines[:14]), encoding="utf-8")
    assert OTHER_TEXT in refusal(config)


def test_a_glob_that_finds_more_or_fewer_files_is_other_text(pipeline: Configured) -> None:
    shutil.copy("text.jsonl", "more.jsonl")
    config = prepared(pipeline(corpus=["*.jsonl"]))
    shutil.copy("text.jsonl", "most.jsonl")
    assert OTHER_TEXT in refusal(config)
    Path("most.jsonl").unlink()
    assert refusal(config) == ""
    Path("more.jsonl").unlink()
    assert OTHER_TEXT in refusal(config)


def test_rows_of_a_dataset_in_a_folder_that_is_gone_are_done(pipeline: Configured) -> None:
    moved("text.jsonl", "set/train.jsonl")
    config = prepared(pipeline(corpus=[], prepare={"recipe": {"sources": [{"dataset": "set", "split": "train"}]}}))
    assert refusal(config) == ""
    shutil.rmtree("set")
    assert refusal(config) == ""
    assert staleness.absent_text(config.prepare).startswith("note: set: not there")


def test_rows_with_words_depend_on_the_terms_but_not_on_the_version_of_rjieba(
    pipeline: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_terms(path: str | None) -> ResolvedPipeline:
        return pipeline(language="zh", prepare={"recipe": {"words": "rjieba", "terms": path} if path else {}})

    Path("terms.txt").write_text("映着远处\n", encoding="utf-8")
    prepared(with_terms("terms.txt"))
    shutil.copy("terms.txt", "same.txt")
    assert refusal(with_terms("terms.txt")) == refusal(with_terms("same.txt")) == ""
    Path("same.txt").write_text("石头上\n", encoding="utf-8")
    assert "recipe.terms was terms.txt, is same.txt; set them back" in refusal(with_terms("same.txt"))
    before = moved("terms.txt", "before.txt")
    shutil.copy("same.txt", "terms.txt")
    assert "out/rows was made from other terms than terms.txt holds now: name" in refusal(with_terms("terms.txt"))
    moved(before, "terms.txt")
    assert "recipe.words was rjieba, is None" in refusal(with_terms(None))
    with monkeypatch.context() as patch:
        patch.setattr(words, "find_spec", lambda _: None)
        assert refusal(with_terms("terms.txt")) == ""
    with monkeypatch.context() as patch:
        patch.setattr(words.metadata, "version", lambda _: "0.0")
        assert refusal(with_terms("terms.txt")) == ""
    Path("terms.txt").unlink()
    assert refusal(with_terms("terms.txt")) == ""
    assert staleness.absent_text(with_terms("terms.txt").prepare).startswith("note: terms.txt: not there")
    prepared(pipeline(language="zh", prepare={"recipe": {"words": "rjieba"}}))
    with pytest.raises(ModelError, match="terms: terms.txt cannot be read"):
        staleness.check_result(with_terms("terms.txt"), "prepare")
