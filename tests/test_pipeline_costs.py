"""Shipped pipelines of known models: their positions with an overlay, and that the stated costs are up to date."""

import tomllib

import pytest

from benchmarks.pipeline_costs import LENGTHS, MODELS, PAGE, SHOWN, base_of, estimate, extended
from longmlm.config import parse
from longmlm.model.architecture import architecture_of
from longmlm.model.position_table import position_table_of
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.shipped import SHIPPED

RESERVED = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "bert": 0}  # rows that no position uses


def test_the_costs_in_the_files_and_on_the_page_are_those_of_the_cost_model():
    """The first length on the page stands for the others."""
    page, length = PAGE.read_text(encoding="utf-8"), SHOWN[0]
    for name, model in MODELS.items():
        cells = estimate(name, length).cells
        text = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
        assert f"\n#{''.join(f'{cell:>12}' for cell in cells)}\n" in text
        assert text.count("# Estimates for one GPU") == 1
        assert "Untested: the weights were not available" in text
        assert tomllib.loads(text)["release"]["card"]["license"]
        assert f"| `{name}` | {model['name']} |" in page
        assert f"| {name} | {' | '.join(cells)} |\n" in page
    assert page.count("| 1536 |") == len(MODELS) == 10


@pytest.mark.parametrize(("name", "length"), [*zip(MODELS, [*LENGTHS] * len(MODELS), strict=False)])
def test_a_pipeline_extends_its_model_to_the_length_of_an_overlay(name, length):
    base = base_of(name)
    config = parse(ResolvedPipeline, [name, f"length-{length}"])
    assert config.extend.base == config.model == MODELS[name]["name"]
    assert config.prepare.recipe.row_length == config.extend.recipe.num_positions == length
    assert config.pretrain.recipe.batch_tokens == 64 * length
    assert config.release.card.title == f"{MODELS[name]['name'].split('/')[1]}-{length}"
    model = extended(base, length)
    reserved, width = RESERVED[base.config.model_type], base.config.hidden_size
    assert architecture_of(base).num_positions == 512 == base.config.max_position_embeddings - reserved
    assert architecture_of(model).num_positions == length == model.config.max_position_embeddings - reserved
    assert position_table_of(model).rows.weight.shape == (length + reserved, width)
    assert model.num_parameters() - base.num_parameters() == (length - 512) * width


@pytest.mark.parametrize(
    ("name", "millions"),
    [("roberta-base", 125), ("roberta-large", 355), ("xlm-roberta-base", 278), ("bert-base-chinese", 102)],
)
def test_models_have_as_many_parameters_as_their_authors_say(name, millions):
    assert base_of(name).num_parameters() / 1e6 == pytest.approx(millions, rel=0.01)
    assert f"{millions} M parameters" in (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
