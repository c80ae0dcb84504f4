"""Results are known as current by content: the same thing under another name is the same, another thing is not."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import staleness
from longmlm.artifacts.run import RunSummary
from longmlm.data import words
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.rows_plan import plan_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, FolderError
from longmlm.folders import MANIFEST
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.temporary import partial_of
from longmlm.training import run_folder
from longmlm.training.run_folder import best_checkpoint, checkpoint_folder
from tests.support.current import pipeline, project, stale
from tests.support.results import write_result, write_results, write_run
from tests.support.tiny import NUM_POSITIONS

__all__ = ["pipeline", "project"]


def moved(name: str, target: str) -> str:
    Path(target).parent.mkdir(exist_ok=True)
    shutil.move(name, target)
    return target


def linked(name: str) -> str:
    link = Path(f"named-{name}")
    link.symlink_to(name)
    return str(link)


NAMES: dict[str, Callable[[str], str]] = {
    "dotted": lambda name: f"./{name}",
    "with a slash": lambda name: f"{name}/",
    "absolute": os.path.abspath,
    "from its own folder": lambda name: f"../{Path.cwd().name}/{name}",
    "through a link": linked,
    "moved": lambda name: moved(name, f"elsewhere/{name}"),
    "moved to another name": lambda name: moved(name, f"named-{name}"),
}


@pytest.mark.parametrize("way", NAMES)
def test_model_corpus_and_output_are_the_same_under_another_name(
    pipeline: Callable[..., ResolvedPipeline], way: str
) -> None:
    write_result(pipeline(), "release")
    corpus = NAMES[way.replace("with a slash", "dotted")]("text.jsonl")
    config = pipeline(model=NAMES[way]("base"), corpus=[corpus], output=NAMES[way]("out"))
    assert stale(config) == []
    rows = Path(config.output, "rows")
    before = (rows / MANIFEST).read_bytes()
    prepare_rows(config.prepare.recipe, load_vocabulary(config.model), rows)
    assert (rows / MANIFEST).read_bytes() == before


def test_a_project_that_is_moved_as_a_whole_is_the_same_from_anywhere(
    pipeline: Callable[..., ResolvedPipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tmp_path, project := tmp_path.parent / f"{tmp_path.name}-copy")
    monkeypatch.chdir(tmp_path.parent)
    paths = {"model": f"{project}/base", "corpus": [f"{project.name}/text.jsonl"], "output": f"{project.name}/out"}
    assert stale(pipeline(**paths)) == ["release"]
    shutil.rmtree(project)


def test_another_model_another_text_and_other_settings_are_not_the_same(
    pipeline: Callable[..., ResolvedPipeline],
) -> None:
    shutil.copytree("base", "other")
    tokenizer = Path("other/tokenizer.json")
    written = tokenizer.read_text(encoding="utf-8")
    tokenizer.write_text(written + "\n", encoding="utf-8")
    with pytest.raises(
        FolderError, match=r"^extend: out/long was made with other settings: base was base, is other; set"
    ):
        stale(pipeline(model="other"))
    shutil.rmtree("base")
    shutil.move("other", "base")
    Path("base/model.safetensors").touch()
    with pytest.raises(
        DataError, match="other weights than base holds now: name another output, move out/long away to make it"
    ):
        stale(pipeline())
    shutil.rmtree("out/long")
    with pytest.raises(DataError, match="out/run was made from other weights than base holds now: name another"):
        staleness.check_result(pipeline(), "pretrain")
    with pytest.raises(DataError, match="out/rows was made from another tokenizer than base holds now: name another"):
        staleness.check_result(pipeline(), "prepare")
    Path("base/tokenizer.json").write_text(written, encoding="utf-8")
    with Path("text.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"text": "One more."}')
    with pytest.raises(DataError, match="out/rows was made from other text than the corpus holds now: name another"):
        staleness.check_result(pipeline(), "prepare")
    with pytest.raises(FolderError) as raised:
        staleness.check_result(pipeline(language="de"), "prepare")
    assert "recipe.sources.0.language was en, is de;" in str(raised.value)
    with pytest.raises(FolderError, match=r"pretrain: .* start\.checkpoint was out/long, is elsewhere"):
        staleness.check_result(pipeline(pretrain={"start": {"checkpoint": "elsewhere"}}), "pretrain")


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
    pipeline: Callable[..., ResolvedPipeline], damage: str, monkeypatch: pytest.MonkeyPatch
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


def test_rows_with_words_are_stale_with_other_terms_but_not_after_an_upgrade_of_rjieba(
    pipeline: Callable[..., ResolvedPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_terms(path: str | None) -> ResolvedPipeline:
        return pipeline(language="zh", prepare={"recipe": {"words": "rjieba", "terms": path} if path else {}})

    Path("terms.txt").write_text("映着远处\n", encoding="utf-8")
    shutil.rmtree("out/rows")
    prepare_rows(with_terms("terms.txt").prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    shutil.copy("terms.txt", "same.txt")
    for name in ("terms.txt", "same.txt"):
        staleness.check_result(with_terms(name), "prepare")
    Path("same.txt").write_text("石头上\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"out/rows was made from other terms than same\.txt holds now: name another"):
        staleness.check_result(with_terms("same.txt"), "prepare")
    with pytest.raises(FolderError, match=r"recipe\.words was rjieba, is None"):
        staleness.check_result(with_terms(None), "prepare")
    with monkeypatch.context() as patch:
        patch.setattr(words, "find_spec", lambda _: None)
        staleness.check_result(with_terms("terms.txt"), "prepare")
    monkeypatch.setattr(words.metadata, "version", lambda _: "0.0")
    staleness.check_result(with_terms("terms.txt"), "prepare")


def test_no_refusal_advises_to_remove_anything(pipeline: Callable[..., ResolvedPipeline]) -> None:
    for changes in ({"length": 48}, {"language": "de"}, {"pretrain": {"recipe": {"seed": 7}}}):
        with pytest.raises(FolderError) as raised:
            stale(pipeline(**changes))
        assert "remove" not in str(raised.value) and "\n" not in str(raised.value)


def test_a_run_that_started_from_a_moved_model_of_its_own_length_is_the_same(
    pipeline: Callable[..., ResolvedPipeline],
) -> None:
    own = {"extension": False, "length": NUM_POSITIONS, "output": "own"}
    write_results(replace(pipeline(**own), until="pretrain"))
    moved("base", "models/base")
    own["model"] = "models/base"
    assert stale(pipeline(**own)) == ["evaluate", "release"]
    Path("models/base/model.safetensors").write_bytes(b"other")
    with pytest.raises(FolderError, match=r"own/run was made with other settings: start.checkpoint was base, is "):
        stale(pipeline(**own))


def test_unfinished_rows_of_a_moved_corpus_are_kept(pipeline: Callable[..., ResolvedPipeline]) -> None:
    recipe = replace(pipeline().prepare.recipe, slice_bytes=300)
    packed: list[int] = []

    def one_slice(job, numbers):
        run_slices(job, numbers[:1])
        packed.extend(numbers)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_rows(recipe, load_vocabulary("base"), Path("new"), one_slice)
    assert len(packed) > 2 and partial_of(Path("new")).is_dir()
    source = replace(recipe.sources[0], files=(moved("text.jsonl", "named.jsonl"),))
    again: list[int] = []

    def the_rest(job, numbers):
        again.extend(numbers)
        run_slices(job, numbers)

    prepare_rows(replace(recipe, sources=(source,)), load_vocabulary("base"), Path("new"), the_rest)
    assert again == packed[1:]


def test_the_same_bytes_in_another_format_are_other_text(pipeline: Callable[..., ResolvedPipeline]) -> None:
    recipe = pipeline().prepare.recipe
    as_text = replace(recipe.sources[0], files=(shutil.copy("text.jsonl", "text.txt"),))
    one, *_ = plan_rows(recipe, "f")
    two, *_ = plan_rows(replace(recipe, sources=(as_text,)), "f")
    assert not one.plan.is_same(two.plan)
    assert one.plan.is_same(one.plan) and not one.plan.is_same(replace(one.plan, tokenizer_fingerprint="g"))
