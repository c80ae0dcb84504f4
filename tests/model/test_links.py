"""Links in the folder of a model: one that leaves the folder is refused wherever the model is read."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModel

from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, ModelError, ReleaseError
from longmlm.hubs.licences import licence_of
from longmlm.hubs.models import check_model, config_of_model, model_card_of, snapshot_of
from longmlm.model.loading import load_encoder, load_model, meta_model, new_model
from longmlm.release.build import pictures_in
from tests.support.tiny import World

SECRET = "a private key"
MODULES = [{"path": path, "type": "sentence_transformers.models.Dense"} for path in ("", "1_Dense", "deep/2_Dense")]
FILES = (
    *("config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "longmlm.json", "README.md", "manifest.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.txt", "vocab.json", "merges.txt", "dict.txt", "spiece.model", "sentencepiece.bpe.model", "bpe.codes"),
    *("LICENSE", "LICENSE.txt", "NOTICE.md", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("1_Dense/config.json", "1_Dense/notes.txt", "1_Dense/model.safetensors", "deep/2_Dense/pytorch_model.bin"),
    *("additional_chat_templates/tool.jinja", "modules.json"),
)
FOLDERS = ("1_Dense", "deep", "deep/2_Dense", "additional_chat_templates")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a sentence-transformers model; its contents do not matter, since links are checked first."""
    folder = tmp_path / "given" / "base"
    for name in (*FILES, "notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "modules.json").write_text(json.dumps(MODULES))
    assert snapshot_of(str(folder)).folder == folder
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What must not be published: a file, and a folder that holds a file for each name in the model's."""
    outside = tmp_path / "home"
    outside.mkdir()
    (outside / "key").write_text(SECRET)
    return outside


def absolute(link: Path, target: Path) -> None:
    link.symlink_to(target)


def relative(link: Path, target: Path) -> None:
    link.symlink_to(os.path.relpath(target, link.parent))


def chained(link: Path, target: Path) -> None:
    """Through another link in the folder, which is hidden and thus not read itself."""
    (link.parent / ".cache").symlink_to(target)
    link.symlink_to(".cache")


def dangling(link: Path, target: Path) -> None:
    link.symlink_to(target.with_name("made later"))


@pytest.mark.parametrize("kind", [absolute, relative, chained, dangling])
def test_link_to_a_file_or_folder_outside_is_named(
    folder: Path, outside: Path, kind: Callable[[Path, Path], None]
) -> None:
    shutil.copytree(folder / "1_Dense", outside / "key.d")
    for name in (*FILES, *FOLDERS):
        path, target = folder / name, outside / ("key" if name in FILES else "key.d")
        (outside / "key").write_text(json.dumps(MODULES) if name == "modules.json" else SECRET)
        path.rename(folder / ".aside")
        kind(path, target)
        with pytest.raises(ModelError, match=f"{path}.* is a link") as caught:
            snapshot_of(str(folder))
        assert "\n" not in str(caught.value)
        for link in (path, path.parent / ".cache"):
            link.unlink(missing_ok=True)
        (folder / ".aside").rename(path)
    assert snapshot_of(str(folder)).folder == folder


def test_paths_that_are_written_in_files_do_not_leave_the_folder(folder: Path, outside: Path) -> None:
    for path in ("../../home", str(outside), "1_Dense/../../../home"):
        (folder / "modules.json").write_text(json.dumps([{**MODULES[1], "path": path}]))
        with pytest.raises(ModelError, match=r"modules\.json names a folder outside"):
            snapshot_of(str(folder))
    (folder / "modules.json").write_text(json.dumps(MODULES))
    for key in ("vocab", "merges"):
        (folder / "tokenizer_config.json").write_text(json.dumps({key: str(outside / "key")}))
        with pytest.raises(ModelError, match=rf"tokenizer_config\.json names a file as its {key}"):
            snapshot_of(str(folder))


def test_links_within_the_folder_and_to_the_folder_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "LICENSE").unlink()
    (folder / "LICENSE").symlink_to("LICENSE.txt")
    (folder / "NOTICE").symlink_to(folder / "LICENSE")  # a chain, and absolute
    shutil.rmtree(folder / "deep" / "2_Dense")
    (folder / "deep" / "2_Dense").symlink_to("../1_Dense")
    (tmp_path / "named").symlink_to(folder)
    (tmp_path / "named again").symlink_to("named")
    for name in (folder, tmp_path / "named", tmp_path / "named again"):
        assert {"LICENSE", "NOTICE"} <= set(snapshot_of(str(name)).names)


def test_links_that_are_never_read_do_not_matter(folder: Path, outside: Path) -> None:
    (folder / "onnx").symlink_to(outside)
    (folder / ".env").symlink_to(outside / "key")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "latest").symlink_to(outside)
    assert not [name for name in snapshot_of(str(folder)).names if name.startswith(("onnx", ".env", "checkpoints"))]


def test_loops_end(folder: Path) -> None:
    (folder / "NOTICE").symlink_to("NOTICE")
    (folder / "additional_chat_templates" / "loop").symlink_to("..")
    shutil.rmtree(folder / "1_Dense")
    (folder / "1_Dense").symlink_to(".")
    assert "NOTICE" not in snapshot_of(str(folder)).names


def hub_cache(ground: Path, kind: str = "models--owner--name") -> Path:
    """Returns a snapshot in a cache as huggingface_hub lays it out."""
    snapshot = ground / kind / "snapshots" / ("c" * 40)
    for name in ("config.json", "LICENSE", "1_Dense/config.json"):
        blob = ground / kind / "blobs" / name.replace("/", "-")
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text("{}")
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        relative(snapshot / name, blob)
    (snapshot / "modules.json").write_text(json.dumps(MODULES[:2]))
    return snapshot


def test_links_of_a_hub_cache_lead_to_its_own_files_only(tmp_path: Path, outside: Path) -> None:
    snapshot, other = hub_cache(tmp_path), hub_cache(tmp_path, "models--owner--private")
    (tmp_path / "named").symlink_to(snapshot)
    for name in (snapshot, tmp_path / "named"):
        assert {"LICENSE", "1_Dense/config.json"} <= set(snapshot_of(str(name)).names)
    for target in (outside / "key", other / "LICENSE", other.parents[1] / "blobs" / "LICENSE"):
        (snapshot / "LICENSE").unlink()
        (snapshot / "LICENSE").symlink_to(target)
        with pytest.raises(ModelError, match="LICENSE is a link"):
            snapshot_of(str(snapshot))
    blobs = snapshot.parents[1] / "blobs"
    (snapshot / "LICENSE").unlink()
    relative(snapshot / "LICENSE", blobs / "LICENSE")
    shutil.move(blobs, outside / "blobs")
    blobs.symlink_to(outside / "blobs")
    with pytest.raises(ModelError, match="is a link"):
        snapshot_of(str(snapshot))


def test_picture_of_an_evaluation_that_is_a_link_is_not_released(tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "evaluation"
    folder.mkdir()
    (folder / "blocks.png").write_bytes(b"")
    (folder / "recovery.png").symlink_to("blocks.png")
    assert pictures_in(folder) == [folder / "blocks.png", folder / "recovery.png"]
    (folder / "recovery.png").unlink()
    (folder / "recovery.png").symlink_to(outside / "key")
    with pytest.raises(ReleaseError, match=r"recovery\.png is a link"):
        pictures_in(folder)


READERS: dict[str, Callable[[str], object]] = {
    "load_model": load_model,
    "load_encoder": lambda name: load_encoder(name, AutoModel, head_seed=0),
    "load_vocabulary": load_vocabulary,
    "new_model": lambda name: new_model(f"{name}/config.json", name, 0),
    "meta_model": meta_model,
    "check_model": check_model,
    "config_of_model": config_of_model,
    "model_card_of": lambda name: model_card_of(name, None),
    "licence_of": lambda name: licence_of(None, Provenance(started_from=ModelSource(name=name))),
}


@pytest.mark.parametrize("reader", READERS)
def test_everything_that_reads_a_model_refuses_the_link(
    world: World, outside: Path, tmp_path: Path, reader: str
) -> None:
    base = Path(shutil.copytree(world.base, tmp_path / "base"))
    (base / "README.md").write_text("---\nlicense: mit\n---\n")
    READERS[reader](str(base))
    (base / "LICENSE.txt").symlink_to(outside / "key")
    with pytest.raises((ModelError, DataError, ReleaseError), match=r"LICENSE\.txt is a link"):
        READERS[reader](str(base))
