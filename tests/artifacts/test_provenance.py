"""longmlm.json: the history of a run, and what a release says of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts.artifact import dump
from longmlm.artifacts.provenance import Extension, ModelSource, Provenance, TrainingRecord, read_provenance
from longmlm.errors import ArtifactError
from longmlm.settings.masking import HeldOut, Masking

EXTENSION = Extension(
    base=ModelSource(name="assets/roberta-mini"),
    base_positions=128,
    num_positions=384,
    initialisation="hierarchical",
    alpha=0.4,
    seed=0,
    mode="materialized",
)
RECORD = TrainingRecord(
    row_length=384,
    steps=200,
    tokens=1213630,
    accuracy=37.25,
    precision="bf16",
    held_out=HeldOut(max_rows=200, mask_seed=1789, masking=Masking(selected_fraction=0.2)),
    rows_sha256="ea2f",
    files_sha256=("d94f",),
)


def test_the_formula_names_the_settings_of_the_initialisation_only() -> None:
    fitted = replace(EXTENSION, initialisation="fitted", smooth_terms=6)
    assert EXTENSION.description == "hierarchical, alpha 0.4"
    assert fitted.description == "fitted, smooth_terms 6"
    assert replace(EXTENSION, initialisation="tile").description == "tile"


@pytest.mark.parametrize("removed", ["random", "interpolate", "stretched"])
def test_a_removed_initialisation_is_refused_in_a_line_that_lists_the_others(tmp_path: Path, removed: str) -> None:
    content = dump(Provenance(extension=EXTENSION))
    content["extension"]["initialisation"] = removed
    (tmp_path / Provenance.FILE).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"initialisation: .*'hierarchical', 'tile', 'fitted' or 'distilled'$"):
        read_provenance(tmp_path)


def test_a_folder_without_a_history_has_an_empty_one(tmp_path: Path) -> None:
    assert read_provenance(tmp_path) == Provenance()
    (tmp_path / Provenance.FILE).write_text("[]", encoding="utf-8")
    with pytest.raises(ArtifactError, match=str(tmp_path / Provenance.FILE)):
        read_provenance(tmp_path)


def test_an_extension_without_the_keys_of_a_window_attends_to_all_tokens(tmp_path: Path) -> None:
    content = dump(Provenance(extension=EXTENSION))
    del content["extension"]["attention_window"], content["extension"]["num_global_tokens"]
    (tmp_path / Provenance.FILE).write_text(json.dumps(content), encoding="utf-8")
    assert read_provenance(tmp_path).extension == EXTENSION


def test_a_run_appends_the_training_of_its_start() -> None:
    start, first = ModelSource(name="out/long", revision=None), replace(RECORD, steps=1)
    about = Provenance(extension=EXTENSION, trained=RECORD, trained_before=(first,)).of_run(start)
    assert about == Provenance(extension=EXTENSION, started_from=start, trained_before=(first, RECORD))
    assert about.of_run(start).trained_before == (first, RECORD)


def test_the_source_is_the_base_model_before_the_start_of_the_run() -> None:
    start = ModelSource(name="out/long")
    assert Provenance().source is None
    assert Provenance(started_from=start).source == start
    assert Provenance(extension=EXTENSION, started_from=start).source == EXTENSION.base


def test_a_release_names_local_folders_by_their_last_part() -> None:
    local, of_hub = ModelSource(name="/maker/secret/long/"), ModelSource(name="owner/name", revision="c0ffee")
    about = Provenance(extension=replace(EXTENSION, base=of_hub), started_from=local, trained=RECORD).published()
    assert (about.extension.base, about.started_from) == (of_hub, ModelSource(name="long"))
    about = Provenance(extension=EXTENSION).published()
    assert (about.extension.base.name, about.started_from) == ("roberta-mini", None)
    assert Provenance().published() == Provenance()


def test_the_accuracy_of_the_exported_files_is_added() -> None:
    about = Provenance(trained=RECORD).exported(36.5)
    assert about.trained == replace(RECORD, exported_accuracy=36.5)
