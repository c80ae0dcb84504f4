"""Rows as a public dataset: what is published and what is not, its card, its destinations."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import DatasetCard

from longmlm.artifacts.rows import SPLITS, read_rows_manifest
from longmlm.data.rows import open_named_rows, open_rows
from longmlm.errors import FolderError, ReleaseError
from longmlm.folders import MANIFEST, verify
from longmlm.release.dataset import Publication, dataset_card, size_category
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, RowsCard, Source
from longmlm.stages.prepare import prepare
from tests.support.hub import Hub, Repository
from tests.support.loopback import Fault
from tests.support.served import TOKEN, sent
from tests.support.worlds import World

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # what the client does to httpx2
NAME = "owner/tiny-rows"


@pytest.fixture
def config(world: World, tmp_path: Path) -> PrepareConfig:
    """The settings by which the rows were made, in a copy, with a rejected text beside them."""
    rows = Path(shutil.copytree(world.rows, tmp_path / "rows"))
    (rows / "set_aside").mkdir(exist_ok=True)
    (rows / "set_aside" / "slice-00007.jsonl").write_text('{"reason": "a rejected text"}')
    return PrepareConfig(
        output=str(rows),
        publish=f"hf:{NAME}",
        recipe=PrepareRecipe(
            tokenizer=str(world.base),
            row_length=open_rows(rows, "train").row_length,
            sources=(Source(files=(str(world.rows.parent / "text.jsonl"),)),),
            held_out_fraction=0.25,
        ),
        card=RowsCard(license="cc0-1.0"),
    )


@pytest.fixture
def repository(hub: Hub, config: PrepareConfig) -> Repository:
    """What the hub holds after a publication."""
    prepare(config)
    return hub.repository(f"datasets/{NAME}")


def held(repository: Repository, revision: str = "main") -> dict[str, bytes]:
    return {path: content for path, content in repository.files(revision).items() if path[0] != "."}


def test_shard_that_was_moved_and_linked_is_published_as_a_file(config: PrepareConfig, repository: Repository) -> None:
    shard = next(Path(config.output).glob("train/*.arrow"))
    shard.rename(moved := shard.with_name("moved"))
    shard.symlink_to("moved")
    copy = Path(config.output).parent / "copies"
    prepare(replace(config, publish=f"folder:{copy}"))
    assert [path.read_bytes() for path in copy.glob("train/*")] == [moved.read_bytes()]


def shards(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("*/slice-*.arrow")}
    assert {name.split("/")[0] for name in found} == set(SPLITS)
    return found


def test_rows_lie_on_the_hub_whole_private_and_known_as_those_that_were_prepared(
    repository: Repository, config: PrepareConfig, world: World, tmp_path: Path
) -> None:
    published = held(repository)
    assert published.keys() - shards(Path(config.output)) == {"README.md", MANIFEST}
    assert published.items() >= shards(Path(config.output)).items()
    assert repository.private
    assert json.loads(published[MANIFEST])["files"].keys() == published.keys() - {MANIFEST}
    assert {path.name for path in tmp_path.iterdir()} == {"rows"}
    paths = [str(path) for path in (tmp_path, world.base, world.rows.parent, Path.home(), Path.cwd())]
    for private in [*paths, "a rejected text", TOKEN]:
        assert not [name for name, content in published.items() if private.encode() in content]
    (source,) = json.loads(published[MANIFEST])["plan"]["sources"]
    assert [file["path"] for file in source["files"]] == ["text.jsonl"]
    folder = tmp_path / "downloaded"
    for name, content in published.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for split in SPLITS:
        here, there = open_rows(Path(config.output), split), open_rows(folder, split)
        assert (there.sha256, len(there), there.row_length) == (here.sha256, len(here), here.row_length)
        assert there.manifest.plan == here.manifest.plan.without_paths() != here.manifest.plan
        assert there[0].input_ids.tolist() == here[0].input_ids.tolist()


def test_publishing_again_removes_old_shards_and_sends_only_what_changed(
    repository: Repository, hub: Hub, config: PrepareConfig
) -> None:
    repository.commit({**repository.files(), "train/slice-00099.arrow": b"old", "train/notes.txt": b"mine"})
    prepare(config)
    assert "train/slice-00099.arrow" not in held(repository)
    assert held(repository)["train/notes.txt"] == b"mine"
    commits, uploads = len(repository.commits), len(sent(hub, "PUT "))
    assert uploads >= 2
    prepare(config)
    assert (len(repository.commits), len(sent(hub, "PUT "))) == (commits, uploads)
    prepare(replace(config, card=replace(config.card, title="Another")))
    assert (len(repository.commits), len(sent(hub, "PUT "))) == (commits + 1, uploads)
    assert "# Another" in held(repository)["README.md"].decode()


def test_branches_and_tags_hold_rows_and_their_card_says_so(hub: Hub, config: PrepareConfig) -> None:
    prepare(replace(config, revision="v2", tag="v2.0"))
    repository = hub.repository(f"datasets/{NAME}")
    assert held(repository) == {}
    for revision in ("v2", "v2.0"):
        assert held(repository, revision).items() >= shards(Path(config.output)).items()
    card = held(repository, "v2")["README.md"].decode()
    assert f'load_dataset("{NAME}", split="train", revision="v2")' in card
    assert f'rows = "hf:{NAME}@v2"' in card


def test_card_has_the_metadata_of_the_hub_and_describes_the_rows(repository: Repository, config: PrepareConfig) -> None:
    text, manifest = held(repository)["README.md"].decode(), read_rows_manifest(Path(config.output))
    card = DatasetCard(text)
    card.validate()
    data = card.data.to_dict()
    assert (data["language"], data["license"], data["size_categories"]) == (["en"], "cc0-1.0", ["n<1K"])
    assert data["pretty_name"] == "rows"
    (found,) = data["configs"]
    assert found["data_files"] == [{"split": split, "path": f"{split}/*.arrow"} for split in SPLITS]
    for split in SPLITS:
        assert f"{manifest.report.of(split).rows:,}" in text
        assert f"{manifest.report.of(split).fill_rate:.1%}" in text
    lines = [f"# {Path(config.output).name}", "rows of 40", "| input_ids |", f"`{Path(config.recipe.tokenizer).name}`"]
    lines += [str(manifest.plan.tokenizer_fingerprint), "## Licence\n\ncc0-1.0"]
    lines += ["- text.jsonl (licence", "| text.jsonl | en |", "A row may hold several documents"]
    assert [line for line in lines if line not in text] == []
    manifest = replace(manifest, report=replace(manifest.report, set_aside={"no text": 1_234}))
    other = dataset_card(manifest, Publication("owner/model", RowsCard(data=("Novels, public domain",))), "rows")
    assert all(line in other for line in ("- Novels, public domain\n", "1,234 x no text", "`owner/model`"))


def test_size_category_is_that_of_the_hub() -> None:
    sizes = {0: "n<1K", 999: "n<1K", 1_000: "1K<n<10K", 99_999: "10K<n<100K", 5_000_000: "1M<n<10M", 10**10: "n>1B"}
    assert {count: size_category(count) for count in sizes} == sizes


def test_copy_in_a_folder_opens_as_rows_and_is_made_once(config: PrepareConfig, tmp_path: Path) -> None:
    copied = replace(config, publish=f"folder:{tmp_path}/copies/tiny")
    prepare(copied)
    folder = tmp_path / "copies" / "tiny"
    assert shards(folder) == shards(Path(config.output))
    assert not (folder / "set_aside").exists()
    assert len(open_named_rows(str(folder), "held_out")) == len(open_rows(Path(config.output), "held_out"))
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    prepare(copied)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times
    assert verify(folder)["kind"] == "rows"


def test_publishing_changes_neither_rows_nor_what_they_depend_on(repository: Repository, config: PrepareConfig) -> None:
    before = {path: path.read_bytes() for path in Path(config.output).rglob("*.arrow")}
    prepare(replace(config, publish=None, card=RowsCard()))
    assert {path: path.read_bytes() for path in Path(config.output).rglob("*.arrow")} == before


def test_damaged_rows_are_named_and_not_published(hub: Hub, config: PrepareConfig) -> None:
    shard = next(Path(config.output).glob("train/*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(FolderError, match=f"^{shard} is damaged"):
        prepare(config)
    assert hub.repositories == {}


def test_hub_that_refuses_is_one_line_and_one_that_fails_is_asked_again(hub: Hub, config: PrepareConfig) -> None:
    hub.faults = [Fault("POST .*/commit/main", 403, said=f"no room for {TOKEN}")]
    with pytest.raises(ReleaseError, match="owner/tiny-rows.*403") as caught:
        prepare(config)
    assert TOKEN not in str(caught.value) and "\n" not in str(caught.value)
    hub.faults = [Fault("POST .*/commit/main", 503)]
    prepare(config)
    assert held(hub.repository(f"datasets/{NAME}")).items() >= shards(Path(config.output)).items()
