"""Results are known as current by content: the same thing under another name is the same, another thing is not."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import staleness
from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Extension, ModelSource, Provenance
from longmlm.config import resolved_pipeline
from longmlm.data.engine import plan_rows, prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, FolderError
from longmlm.folders import MANIFEST
from longmlm.hubs.models import local_model_sha256
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.results import result_of
from longmlm.settings.shipped import PACKAGE
from longmlm.settings.tables import merged
from longmlm.temporary import partial_of

MINI = PACKAGE / "bundled" / "roberta-mini"
TABLES = {
    "model": "base",
    "corpus": ["text.jsonl"],
    "length": 384,
    "output": "out",
    "prepare": {"recipe": {"held_out_fraction": 0.4}},
}


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ResolvedPipeline]:
    """A pipeline in the current folder whose stages have results; returns it with other settings."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(MINI, "base")
    lines = [json.dumps({"text": f"Text number {number}."}) for number in range(30)]
    Path("text.jsonl").write_text("\n".join(lines), encoding="utf-8")

    def with_settings(**changes: object) -> ResolvedPipeline:
        return resolved_pipeline(merged(TABLES, changes))

    config = with_settings()
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), result_of(config.prepare))
    source = ModelSource(name="base", sha256=local_model_sha256("base"))
    extension = Extension.of(config.extend.recipe, source, 128)
    for name, about in {"long": Provenance(extension=extension), "run/checkpoints/step-00000001": Provenance()}.items():
        Path("out", name).mkdir(parents=True)
        artifact.write(Path("out", name, Provenance.FILE), about)
    Path("out/long", MANIFEST).write_text('{"files": {}}')
    Path("out/evaluation").mkdir()
    shutil.copytree("out/long", "out/release")
    staleness.check_base_model(config)
    for name in config.stages:
        staleness.record_done(config, name)
    return with_settings


def check(config: ResolvedPipeline) -> None:
    """Makes the checks of `run`, as for a pipeline that has no release yet."""
    (Path(config.output) / staleness.DONE / "release.toml").unlink(missing_ok=True)
    staleness.check_results(config)
    staleness.check_inputs(config)
    staleness.check_base_model(config)


def changed(config: ResolvedPipeline) -> dict[str, list[str]]:
    found = {name: staleness.changed_settings(config, name) for name in config.stages}
    return {
        name: lines for name, lines in found.items() if lines and lines != ["card.title was base-384, is named-384"]
    }


def moved(name: str, target: str) -> str:
    Path(target).parent.mkdir(exist_ok=True)
    shutil.move(name, target)
    return target


def linked(name: str) -> str:
    link = Path(f"named{Path(name).suffix}")
    link.symlink_to(name)
    return str(link)


NAMES: dict[str, Callable[[str], str]] = {
    "dotted": lambda name: f"./{name}",
    "with a slash": lambda name: f"{name}/",
    "absolute": os.path.abspath,
    "from its own folder": lambda name: f"../{Path.cwd().name}/{name}",
    "through a link": linked,
    "moved": lambda name: moved(name, f"elsewhere/{name}"),
    "moved to another name": lambda name: moved(name, f"named{Path(name).suffix}"),
}


@pytest.mark.parametrize("way", NAMES)
def test_the_base_model_is_the_same_under_another_name(pipeline: Callable[..., ResolvedPipeline], way: str) -> None:
    config = pipeline(model=NAMES[way]("base"))
    check(config)
    assert changed(config) == {}
    assert staleness.is_made(config, "extend")
    Path("out/done/extend.toml").unlink()
    assert staleness.is_made(config, "extend"), "the extend command leaves no record"


@pytest.mark.parametrize("way", [way for way in NAMES if way != "with a slash"])
def test_the_corpus_is_the_same_under_another_name(pipeline: Callable[..., ResolvedPipeline], way: str) -> None:
    config = pipeline(corpus=[NAMES[way]("text.jsonl")])
    check(config)
    assert changed(config) == {}
    assert staleness.is_made(config, "prepare")
    before = Path("out/rows", MANIFEST).read_bytes()
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    assert Path("out/rows", MANIFEST).read_bytes() == before


@pytest.mark.parametrize("way", NAMES)
def test_the_output_is_the_same_under_another_name(pipeline: Callable[..., ResolvedPipeline], way: str) -> None:
    config = pipeline(output=NAMES[way]("out"))
    check(config)
    assert changed(config) == {}
    assert all(staleness.is_made(config, name) for name in ("extend", "prepare"))


def test_a_project_that_is_moved_as_a_whole_is_the_same_from_anywhere(
    pipeline: Callable[..., ResolvedPipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tmp_path, project := tmp_path.parent / f"{tmp_path.name}-copy")
    monkeypatch.chdir(tmp_path.parent)
    paths = {"model": f"{project}/base", "corpus": [f"{project.name}/text.jsonl"], "output": f"{project.name}/out"}
    config = pipeline(**paths)
    check(config)
    assert changed(config) == {}
    shutil.rmtree(project)


def test_another_model_another_text_and_other_settings_are_not_the_same(
    pipeline: Callable[..., ResolvedPipeline],
) -> None:
    shutil.copytree("base", "other")
    tokenizer = Path("other/tokenizer.json")
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(
        FolderError, match=r"^extend: out/long was made with other settings: base was base, is other; set"
    ):
        check(pipeline(model="other"))
    shutil.rmtree("base")
    shutil.move("other", "base")
    Path("base/model.safetensors").touch()
    with pytest.raises(DataError, match="made from other weights than base holds now: name another output, or put"):
        check(pipeline())
    with Path("text.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"text": "One more."}')
    with pytest.raises(DataError, match="out/rows was made from other text than the corpus holds now: name another"):
        staleness.check_inputs(pipeline())
    with pytest.raises(FolderError) as raised:
        check(pipeline(language="de"))
    assert "recipe.sources.0.language was en, is de;" in str(raised.value)
    with pytest.raises(FolderError, match=r"pretrain: .* start\.checkpoint was out/long, is elsewhere"):
        check(pipeline(pretrain={"start": {"checkpoint": "elsewhere"}}))


def test_no_refusal_advises_to_remove_anything(pipeline: Callable[..., ResolvedPipeline]) -> None:
    for changes in ({"length": 256}, {"language": "de"}, {"pretrain": {"recipe": {"seed": 7}}}):
        with pytest.raises(FolderError) as raised:
            check(pipeline(**changes))
        assert "remove" not in str(raised.value) and "\n" not in str(raised.value)


def test_a_run_that_started_from_a_moved_model_of_its_own_length_is_the_same(
    pipeline: Callable[..., ResolvedPipeline],
) -> None:
    own = pipeline(extension=False, length=128)
    staleness.record_done(own, "pretrain")
    source = ModelSource(name="base", sha256=local_model_sha256("base"))
    about = Path("out/run/checkpoints/step-00000001", Provenance.FILE)
    moved("base", "models/base")
    for started_from, is_same in ((source, True), (replace(source, sha256="0" * 64), False)):
        artifact.write(about, Provenance(started_from=started_from))
        found = staleness.changed_settings(pipeline(extension=False, length=128, model="models/base"), "pretrain")
        assert (found == []) == is_same


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
    one, _ = plan_rows(recipe, "f", Path("out/rows"))
    two, _ = plan_rows(replace(recipe, sources=(as_text,)), "f", Path("out/rows"))
    assert not one.plan.is_same(two.plan)
    assert one.plan.is_same(one.plan) and not one.plan.is_same(replace(one.plan, tokenizer_fingerprint="g"))
