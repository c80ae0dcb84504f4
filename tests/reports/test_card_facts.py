"""Facts for the model card: licence and training, from the files of base model and checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.data.rows import open_rows
from longmlm.errors import ReleaseError
from longmlm.hubs.licences import Licence, check_licence, licence_of
from longmlm.reports.card_code import EXAMPLES, LoadingCode
from longmlm.reports.model_card import Training, languages, training_of
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.settings.release import ReleaseCard
from tests.support.rows import of_sources
from tests.support.tiny import World, tiny_extension

RECIPE = PretrainRecipe(
    num_steps=5, batch_tokens=100, learning_rate=1e-4, seed=7, masking=Masking(selected_fraction=0.2)
)


TEMPLATES = ("load_model.md", "load_task.md", "load_longformer.md", "load_sentences.md", "load_onnx.md")


@pytest.mark.parametrize("language", [*EXAMPLES, "zh-Hant", "fi"])
def test_the_example_on_a_card_is_in_the_language_of_the_model(language: str) -> None:
    texts = EXAMPLES.get(language[:2], EXAMPLES["en"])
    for template in TEMPLATES:
        code = LoadingCode(template, language=language).runnable
        compile(code, template, "exec")
        assert any(f'"{text}' in code for text in texts)
    assert (
        f'(f"{texts[0]}{{fill_mask.tokenizer.mask_token}}{texts[1]}")'
        in LoadingCode(TEMPLATES[0], language=language).runnable
    )


def write_state(folder: Path, precision: str = "bf16", computed: str | None = None) -> None:
    """Writes what training_of reads of a checkpoint."""
    state = TrainState(step=5, training_seconds=9000.0)
    recipe = replace(RECIPE, precision=precision)
    saved = CheckpointState(state=state, recipe=recipe, rows_sha256="0" * 64, precision=computed)
    artifact.write(folder / CheckpointState.FILE, saved)


def test_licence_is_that_of_the_base_model_unless_another_is_given(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: openrail\nlicense_link: LICENSE\n---\n")
    local = Provenance(started_from=ModelSource(name=str(tmp_path)))
    assert licence_of("mit", local) == Licence("mit")
    assert licence_of(None, local) == Licence("other", "openrail", "LICENSE", is_of_base=True)


@pytest.mark.parametrize("card", [None, "# no metadata", "---\nlicense: [a, b\n---\n"])
@pytest.mark.parametrize("is_extended", [True, False])
def test_unknown_licence_is_refused_for_a_hub_with_the_remedy(
    tmp_path: Path, card: str | None, is_extended: bool
) -> None:
    if card:
        (tmp_path / "README.md").write_text(card)
    extension, source = tiny_extension(tmp_path), ModelSource(name=str(tmp_path))
    provenance = Provenance(extension=extension) if is_extended else Provenance(started_from=source)
    stated = ReleaseCard(title="A model", license="mit")
    for about, reason in ((provenance, str(tmp_path)), (Provenance(), "no base model")):
        assert licence_of(None, about) == Licence()
        with pytest.raises(ReleaseError, match=rf"{reason}.*card\.license"):
            check_licence(replace(stated, license=None), about)
        check_licence(stated, about)


def test_training_is_described_as_far_as_it_is_known(tmp_path: Path) -> None:
    write_state(tmp_path)
    training = training_of(tmp_path)
    assert training.seconds == 9000.0
    assert (training.settings["seed"], training.settings["masking.selected_fraction"]) == ("7", "0.2")
    assert not [name for name in training.settings if "held_out" in name or "dropout" in name]
    assert training_of(tmp_path / "nowhere") == Training()


@pytest.mark.parametrize(("trained", "shown"), [("no", "fp32 (auto)"), ("bf16", "bf16 (auto)"), (None, "auto")])
def test_precision_is_what_auto_stood_for(tmp_path: Path, trained: str | None, shown: str) -> None:
    write_state(tmp_path, "auto", trained)
    assert training_of(tmp_path).settings["precision"] == shown
    write_state(tmp_path, "bf16", trained)
    assert training_of(tmp_path).settings["precision"] == "bf16"


def test_languages_are_those_of_the_rows_unless_the_card_names_others(world: World) -> None:
    rows = open_rows(world.rows, "held_out").manifest
    [source] = rows.plan.sources
    chinese = of_sources(rows, replace(source, language="zh"), source, source)
    assert languages(ReleaseCard(title="t"), chinese) == ["zh", "en"]
    assert languages(ReleaseCard(title="t", languages=("de",)), chinese) == ["de"]
